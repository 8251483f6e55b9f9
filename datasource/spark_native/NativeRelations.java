package shardline_jvm;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.Serializable;
import java.lang.ref.Reference;
import java.lang.ref.ReferenceQueue;
import java.lang.ref.WeakReference;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Paths;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.GetStructField;
import org.apache.spark.sql.catalyst.expressions.GreaterThan;
import org.apache.spark.sql.catalyst.expressions.GreaterThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.In;
import org.apache.spark.sql.catalyst.expressions.InSet;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.IsNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.LessThanOrEqual;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.StartsWith;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.FileFormat;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation$;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import org.apache.spark.util.ThreadUtils;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Makes the relations of native frames: Parquet files that the plan of a read knows, under an exact
 * schema. Compiled by Spark's own Janino (compiled_java.py), so in raw types and without lambdas.
 */
public class NativeRelations {
  private final Function statistics;
  private final ExecutorService asking =
      ThreadUtils.newDaemonSingleThreadExecutor("shardline-statistics");
  private final ReferenceQueue collected = new ReferenceQueue();
  private final Map listings = Collections.synchronizedMap(new HashMap());

  /**
   * Stores who knows the files' statistics.
   *
   * @param statistics Takes the number of a list of files and the filters that its rows must pass,
   *     as JSON (`FileFilters`), and returns a digit for each file: 0 if no row of it passes them.
   */
  public NativeRelations(Function statistics) {
    this.statistics = statistics;
  }

  /**
   * The rows of files.
   *
   * @param constants Whole numbers that each file has one of: names and types.
   * @param files Of each file its size, its constants and its path, separated by characters 0.
   * @param seen Of each file what `Look` compares, separated by characters 0; empty if none is
   *     looked at.
   * @param number By which the files' statistics are asked for; empty if there are none.
   */
  public Dataset relation(
      SparkSession session,
      CaseInsensitiveMap options,
      StructType constants,
      String files,
      String seen,
      String number,
      StructType schema,
      FileFormat format) {
    FixedListing listing =
        new FixedListing(session, options, constants, files, seen, this, number);
    if (!number.isEmpty()) {
      listings.put(new WeakReference(listing, collected), number);
    }
    HadoopFsRelation relation =
        new HadoopFsRelation(
            listing, constants, schema, Option.empty(), format, options, session);
    return Dataset$.MODULE$.ofRows(session, LogicalRelation$.MODULE$.apply(relation, false));
  }

  /**
   * What is known of files; null if nothing is.
   *
   * <p>Asked by one thread for all: py4j keeps a connection, and a thread in Python, for each thread
   * that has ever called Python. Those that list files are Spark's own, and come and go.
   */
  String ask(String request) throws InterruptedException {
    try {
      return (String) asking.submit(new Question(statistics, request)).get();
    } catch (ExecutionException e) {
      return null; // all files are read, and the filters applied to their rows
    }
  }

  /** The numbers of files that nothing can list any more, each told once, separated by blanks. */
  public String forgotten() {
    StringBuilder numbers = new StringBuilder();
    for (Reference one = collected.poll(); one != null; one = collected.poll()) {
      numbers.append(numbers.length() == 0 ? "" : " ").append(listings.remove(one));
    }
    return numbers.toString();
  }
}

/** A call of Python. */
class Question implements Callable {
  private final Function answering;
  private final String request;

  Question(Function answering, String request) {
    this.answering = answering;
    this.request = request;
  }

  public Object call() {
    return answering.apply(request);
  }
}

/**
 * The files of a native frame, as the plan of the read knows them: none is looked at to list it.
 *
 * <p>No REFRESH of a view or a path lists them anew. Spark's own list would leave out a file that is
 * missing by then, with a warning in the log and no error.
 *
 * <p>What is the same in all rows of a file, and stands in none of them, is given to Spark as the
 * value of a partition: each batch of columns has it once, and conditions on it leave out files.
 *
 * <p>Spark's reader takes any Parquet file that it finds under a file's name. So a file on the local
 * disk is looked at whenever the driver sends a task that reads it (`Look`), in each run of the
 * frame.
 *
 * <p>A file in which no row can pass the filters of a scan, by the statistics of its part, is left
 * out of that scan: no task is made for it, and not even its footer is read.
 */
class FixedListing extends PartitioningAwareFileIndex {
  private final String files;
  private final PartitionSpec partitions;
  private final scala.collection.mutable.LinkedHashMap statuses =
      new scala.collection.mutable.LinkedHashMap();
  private final scala.collection.immutable.Map folders;
  private final Map looks = new HashMap();
  private final NativeRelations relations;
  private final String number;

  FixedListing(
      SparkSession session,
      CaseInsensitiveMap options,
      StructType constants,
      String files,
      String seen,
      NativeRelations relations,
      String number) {
    super(session, options, Option.empty(), NoopCache$.MODULE$);
    this.relations = relations;
    this.number = number;
    this.files = files;
    Map byValues = new LinkedHashMap();
    String[] texts = files.isEmpty() ? new String[0] : files.split("\0");
    String[] seenOfFile = seen.split("\0");
    for (int at = 0; at < texts.length; at += constants.length() + 2) {
      List values = new ArrayList();
      for (int place = 1; place <= constants.length(); place++) {
        values.add(Long.valueOf(texts[at + place]));
      }
      Path path = new Path(texts[at + constants.length() + 1]);
      long size = Long.parseLong(texts[at]);
      FileStatus status = new FileStatus(size, false, 1, 1 << 27, 0, path);
      if (!seen.isEmpty()) {
        looks.put(path, new Look(path, size, seenOfFile[at / (constants.length() + 2)]));
      }
      statuses.put(path, status);
      if (!byValues.containsKey(values)) {
        byValues.put(values, new ArrayList());
      }
      ((List) byValues.get(values)).add(status);
    }
    List parts = new ArrayList();
    Map inside = new HashMap();
    for (Object one : byValues.entrySet()) {
      Map.Entry entry = (Map.Entry) one;
      // Spark finds a partition's files by its folder. These have none of their own.
      Path folder = new Path("/" + parts.size());
      Object[] own = ((List) entry.getKey()).toArray();
      parts.add(new PartitionPath(new GenericInternalRow(own), folder));
      inside.put(folder, ((List) entry.getValue()).toArray(new FileStatus[0]));
    }
    partitions = new PartitionSpec(constants, CollectionConverters.asScala(parts).toList());
    folders =
        (scala.collection.immutable.Map)
            scala.collection.immutable.Map$.MODULE$.from(CollectionConverters.asScala(inside));
  }

  public PartitionSpec partitionSpec() {
    return partitions;
  }

  public scala.collection.mutable.LinkedHashMap leafFiles() {
    return statuses;
  }

  public scala.collection.immutable.Map leafDirToChildrenFiles() {
    return folders;
  }

  /** The files as Spark lists them; it copies what it is told of each one into the tasks. */
  public Seq listFiles(Seq partitionFilters, Seq dataFilters) {
    Seq found = super.listFiles(partitionFilters, dataFilters);
    Map passes = passes(dataFilters);
    if (looks.isEmpty() && passes == null) {
      return found;
    }
    List made = new ArrayList();
    for (Object one : CollectionConverters.asJava(found)) {
      PartitionDirectory directory = (PartitionDirectory) one;
      List files = new ArrayList();
      for (Object file : CollectionConverters.asJava(directory.files())) {
        FileStatus status = ((FileStatusWithMetadata) file).fileStatus();
        if (passes != null && passes.get(status.getPath()) == Boolean.FALSE) {
          continue;
        }
        Object look = looks.get(status.getPath());
        files.add(
            look == null
                ? file
                : new FileStatusWithMetadata(
                    status, new scala.collection.immutable.Map.Map1("_shardline_look", look)));
      }
      if (!files.isEmpty()) {
        made.add(
            new PartitionDirectory(
                directory.values(), CollectionConverters.asScala(files).toSeq()));
      }
    }
    return CollectionConverters.asScala(made).toSeq();
  }

  /** By path whether a row of the file may pass the filters; null if nothing is known of it. */
  private Map passes(Seq dataFilters) {
    String digits = number.isEmpty() ? null : digits(dataFilters);
    if (digits == null || digits.length() != statuses.size()) {
      return null;
    }
    Map passes = new HashMap();
    for (Object path : CollectionConverters.asJava(statuses.keys().toSeq())) {
      passes.put(path, Boolean.valueOf(digits.charAt(passes.size()) != '0'));
    }
    return passes;
  }

  private String digits(Seq dataFilters) {
    try {
      String filters = FileFilters.described(dataFilters);
      return filters == null ? null : relations.ask(number + " " + filters);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt(); // the query is stopped, and finds that out itself
      return null;
    } catch (Exception e) {
      return null; // no query fails because its filters cannot be described
    }
  }

  /** Spark's own would ask a file system of each root path what it calls it. */
  public Seq allFiles() {
    return statuses.values().toSeq();
  }

  public Seq rootPaths() {
    return statuses.keys().toSeq();
  }

  public void refresh() {}

  /** Spark computes equal scans of a query once, and finds what is cached by an equal plan. */
  public boolean equals(Object other) {
    return other instanceof FixedListing
        && files.equals(((FixedListing) other).files)
        && partitions.partitionColumns().equals(
            ((FixedListing) other).partitions.partitionColumns());
  }

  public int hashCode() {
    return files.hashCode();
  }

  /**
   * Compares a local file with the part that was planned, when it is written into a task.
   *
   * <p>Nothing of it is sent: executors do not know this class. What is gone, or cannot be looked
   * at, is left to the task, whose error says so.
   */
  private static class Look implements Serializable {
    private final Path path;
    private final long size;
    private final int endSize;
    private final long endChecksum;
    private volatile String stamp;

    /**
     * Remembers what to compare.
     *
     * @param seen Number and time of change of the file when it was found intact; size and checksum
     *     of its end, which follows the pages. Size 0 if the checksum is not known.
     */
    Look(Path path, long size, String seen) {
      this.path = path;
      this.size = size;
      String[] numbers = seen.split(" ");
      this.stamp = numbers[0] + " " + numbers[1];
      this.endSize = Integer.parseInt(numbers[2]);
      this.endChecksum = Long.parseLong(numbers[3]);
    }

    /** Called in place of writing this object. Janino would rename a private method. */
    Object writeReplace() {
      try {
        compare();
      } catch (IOException e) {
        // The task meets it, too.
      } catch (InvalidPathException e) {
        // The JVM's encoding of names lacks a character, and the task finds no file.
      }
      return null;
    }

    private void compare() throws IOException {
      String name = path.toUri().getPath();
      Map found = Files.readAttributes(Paths.get(name), "unix:size,ino,lastModifiedTime");
      long length = ((Long) found.get("size")).longValue();
      if (length != size) {
        throw failure("it has " + length + " bytes, not " + size);
      }
      long changed = ((FileTime) found.get("lastModifiedTime")).to(TimeUnit.NANOSECONDS);
      String now = found.get("ino") + " " + changed;
      if (endSize == 0 || now.equals(stamp)) {
        return;
      }
      // Another file, or one that was touched: whether it has the part's contents its end tells.
      byte[] end = new byte[endSize];
      RandomAccessFile file = new RandomAccessFile(name, "r");
      try {
        file.seek(size - endSize);
        file.readFully(end);
      } finally {
        file.close();
      }
      CRC32 checksum = new CRC32();
      checksum.update(end);
      if (checksum.getValue() != endChecksum) {
        throw failure("the checksum of its end does not match");
      }
      stamp = now;
    }

    /** The words that `part_errors.py` looks for. */
    private RuntimeException failure(String why) {
      return new IllegalStateException("the file '" + path + "' is not that of the part: " + why);
    }
  }
}

/**
 * Describes filters of a scan to whoever knows the statistics of its files.
 *
 * <p>Only comparisons of columns, and of fields inside of them, with literals of the very same type
 * are described, by the names of the columns as the files have them. All else is left out, so that
 * what is described is true for each row for which the filters are true, and maybe for more.
 *
 * <p>Each is a list, its first element being: and, or, not (filters); = < <= > >= (column, value);
 * in (column, values, true if a null is among them); null, starts with (column, text). A column is
 * the list of its names, from the outside, and a value the text of Spark's internal one.
 */
class FileFilters {
  private static final int VALUES_MAX = 1000;
  private static final ObjectMapper JSON = new ObjectMapper();

  /** All of the filters, as JSON; null if nothing of them can be described. */
  static String described(Seq filters) throws IOException {
    List all = new ArrayList();
    for (Object one : CollectionConverters.asJava(filters)) {
      Object described = described((Expression) one, false);
      if (described != null) {
        all.add(described);
      }
    }
    return all.isEmpty() ? null : JSON.writeValueAsString(all);
  }

  /**
   * A filter; null if it cannot be described.
   *
   * @param exactly True where nothing may be left out of it, since it is negated.
   */
  private static Object described(Expression filter, boolean exactly) {
    if (filter instanceof And || filter instanceof Or) {
      Object one = described((Expression) filter.children().apply(0), exactly);
      Object other = described((Expression) filter.children().apply(1), exactly);
      if (one != null && other != null) {
        return list(new Object[] {filter instanceof And ? "and" : "or", one, other});
      }
      return filter instanceof Or || exactly ? null : one == null ? other : one;
    }
    if (filter instanceof Not) {
      Object inside = described(((Not) filter).child(), true);
      return inside == null ? null : list(new Object[] {"not", inside});
    }
    if (filter instanceof IsNotNull) {
      Object column = column(((IsNotNull) filter).child());
      Object isNull = column == null ? null : list(new Object[] {"null", column});
      return isNull == null ? null : list(new Object[] {"not", isNull});
    }
    if (filter instanceof IsNull) {
      Object column = column(((IsNull) filter).child());
      return column == null ? null : list(new Object[] {"null", column});
    }
    if (filter instanceof In) {
      return in(((In) filter).value(), CollectionConverters.asJava(((In) filter).list()));
    }
    if (filter instanceof InSet) {
      return inSet((InSet) filter);
    }
    if (filter.dataType() instanceof BooleanType && column(filter) != null) {
      return list(new Object[] {"=", column(filter), "true"});
    }
    if (filter.children().size() != 2) {
      return null;
    }
    return comparison(
        filter,
        (Expression) filter.children().apply(0),
        (Expression) filter.children().apply(1),
        exactly);
  }

  private static Object comparison(
      Expression filter, Expression left, Expression right, boolean exactly) {
    boolean turned = left instanceof Literal;
    Object column = column(turned ? right : left);
    String value =
        turned ? value((Literal) left, right.dataType())
            : right instanceof Literal ? value((Literal) right, left.dataType()) : null;
    if (column == null || value == null) {
      return null;
    }
    if (filter instanceof StartsWith) {
      return turned ? null : list(new Object[] {"starts with", column, value});
    }
    String operator = null;
    if (filter instanceof EqualTo || filter instanceof EqualNullSafe && !exactly) {
      operator = "="; // `<=>` is false for null, where `=` is null: the same unless it is negated
    } else if (filter instanceof LessThan) {
      operator = turned ? ">" : "<";
    } else if (filter instanceof LessThanOrEqual) {
      operator = turned ? ">=" : "<=";
    } else if (filter instanceof GreaterThan) {
      operator = turned ? "<" : ">";
    } else if (filter instanceof GreaterThanOrEqual) {
      operator = turned ? "<=" : ">=";
    }
    return operator == null ? null : list(new Object[] {operator, column, value});
  }

  private static Object in(Expression tested, List listed) {
    Object column = column(tested);
    List values = new ArrayList();
    boolean hasNull = false;
    if (column == null || listed.size() > VALUES_MAX) {
      return null;
    }
    for (Object one : listed) {
      if (!(one instanceof Literal)) {
        return null;
      }
      boolean isNull = ((Literal) one).value() == null;
      String value = isNull ? null : value((Literal) one, tested.dataType());
      if (value == null && !isNull) {
        return null;
      }
      hasNull = hasNull || isNull;
      if (!isNull) {
        values.add(value);
      }
    }
    return list(new Object[] {"in", column, values, Boolean.valueOf(hasNull)});
  }

  private static Object inSet(InSet filter) {
    List literals = new ArrayList();
    if (filter.hset().size() > VALUES_MAX) {
      return null;
    }
    DataType type = filter.child().dataType();
    for (Object one : CollectionConverters.asJava(filter.hset())) {
      literals.add(new Literal(one, type));
    }
    return in(filter.child(), literals);
  }

  /** The names that lead to a column, or to a field inside of one; null if it is another thing. */
  private static List column(Expression expression) {
    List names = new ArrayList();
    while (expression instanceof GetStructField) {
      GetStructField field = (GetStructField) expression;
      names.add(0, ((StructType) field.child().dataType()).fields()[field.ordinal()].name());
      expression = field.child();
    }
    if (!(expression instanceof AttributeReference)) {
      return null;
    }
    names.add(0, ((AttributeReference) expression).name());
    return names;
  }

  /** The text of a literal that is compared with something of a type; null if it has none. */
  private static String value(Literal literal, DataType type) {
    Object value = literal.value();
    if (value == null || !literal.dataType().equals(type)) {
      return null;
    }
    if (value instanceof UTF8String && !((UTF8String) value).isValid()) {
      return null;
    }
    // As a double, which is how statistics have it: its own text is that of another double.
    return value instanceof Float
        ? Double.toString(((Float) value).doubleValue())
        : value.toString();
  }

  private static List list(Object[] elements) {
    return Arrays.asList(elements);
  }
}
