package shardline_jvm;

import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.errors.QueryCompilationErrors$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.sql.execution.streaming.sources.MicroBatchWrite;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.None$;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Puts a native write in the place of each append to format("shard").
 *
 * <p>Spark has an interface for tables that take a whole frame and write it by themselves, for
 * sources that are older than its tasks of writers (V1Write). The table of an append is exchanged
 * for one that has it, and that hands the frame, as Spark has analysed it, to the driver's Python
 * (write_rule.py). Spark plans and runs the append as any other one: once.
 *
 * <p>A streaming sink has no such interface, and its query, which may keep state, must run in the
 * very plan that the stream makes of it. So the writer of a micro-batch is exchanged for Spark's own
 * writer of Parquet files: the query is put below a projection onto the shard's columns, and the
 * commit hands the files to the driver's Python (stream_write.py), which appends them.
 *
 * <p>Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class ShardWriteRule extends Rule {
  private static final String PYTHON_TABLE =
      "org.apache.spark.sql.execution.datasources.v2.python.PythonTable";

  private static final String SETTING = "spark.shardline.nativeWrites";

  /** Of the others, tasks stage rows that the commit turns into a difference. */
  private static final Set ENVELOPES = new HashSet(Arrays.asList(new Object[] {"append", "diff"}));

  /** Read by each task, from the settings of the query itself: of parts it is always this one. */
  private static final String REBASE = "spark.sql.parquet.datetimeRebaseModeInWrite";

  /** Below, what Spark's writer costs for each micro-batch is more than it saves for its rows. */
  private static final long LARGE_BYTES = 8L << 20;

  /** Spark takes a source whose size it does not know for about as large as a long can be. */
  private static final int UNKNOWN_BITS = 62;

  private final Function writer;
  private final Function streamWriter;

  public ShardWriteRule(Function writer, Function streamWriter) {
    this.writer = writer;
    this.streamWriter = streamWriter;
  }

  public TreeNode apply(TreeNode plan) {
    // At the root only: Spark runs each command by a plan of its own.
    if (plan instanceof AppendData) {
      return ofAppend((AppendData) plan);
    }
    return plan instanceof WriteToDataSourceV2 ? ofMicroBatch((WriteToDataSourceV2) plan) : plan;
  }

  private TreeNode ofAppend(AppendData append) {
    TreeNode plan = append;
    NamedRelation to = ((V2WriteCommand) append).table();
    if (!(to instanceof DataSourceV2Relation) || append.analyzedQuery().isEmpty()) {
      return plan;
    }
    DataSourceV2Relation relation = (DataSourceV2Relation) to;
    Table table = relation.table();
    if (!isOurs(table)) {
      return plan;
    }
    Map options = new HashMap(relation.options().asCaseSensitiveMap());
    options.putAll(CollectionConverters.asJava(append.writeOptions()));
    if (isLeft(options)) {
      return plan;
    }
    FrameTable taker = new FrameTable(table, options, writer);
    return append.copy(
        relation.copy(
            taker, relation.output(), relation.catalog(), relation.identifier(),
            relation.options(), relation.timeTravelSpec()),
        append.query(), append.writeOptions(), append.isByName(), append.withSchemaEvolution(),
        new Some(taker), append.analyzedQuery());
  }

  /** The micro-batch of a streaming sink. */
  private TreeNode ofMicroBatch(WriteToDataSourceV2 plan) {
    if (!(plan.batchWrite() instanceof MicroBatchWrite)
        || plan.relation().isEmpty()
        || !isOurs(((DataSourceV2Relation) plan.relation().get()).table())) {
      return plan;
    }
    MicroBatchWrite own = (MicroBatchWrite) plan.batchWrite();
    Object sink = own.writeSupport();
    SparkSession session = active();
    LogicalWriteInfo info = (LogicalWriteInfo) field(sink, "info");
    Map options = new HashMap(info.options().asCaseSensitiveMap());
    if (((Boolean) field(sink, "isTruncate")).booleanValue()
        || isLeft(options)
        || !isLarge(options, plan.query())
        || !"CORRECTED".equalsIgnoreCase(session.conf().get(REBASE, "CORRECTED"))) {
      return plan;
    }
    LogicalPlan query = plan.query();
    // Python says what becomes of the columns by a frame that has them, and no rows.
    LogicalPlan columns = new LocalRelation(query.output(), sequence(new Object[0]), false, none());
    Map request = new HashMap();
    request.put("frame", Dataset$.MODULE$.ofRows(session, columns));
    request.put("options", options);
    streamWriter.apply(request);
    if (request.get("interrupted") != null) {
      Thread.currentThread().interrupt(); // the query is stopped
    }
    if (request.get("rows") == null) {
      return plan;
    }
    org.apache.spark.sql.classic.Dataset rows =
        (org.apache.spark.sql.classic.Dataset) request.get("rows");
    LogicalPlan shaped = onto(rows.queryExecution().analyzed(), query);
    long number = ((Long) field(own, "epochId")).longValue();
    return plan.copy(
        plan.relation(),
        new FilesOfMicroBatch(request, number),
        shaped,
        plan.customMetrics());
  }

  /** True if Spark's own writer costs a micro-batch no more, or the option asks for it. */
  private static boolean isLarge(Map options, LogicalPlan query) {
    return "true".equals(valueOf(options, "nativewrites", "")) || sizeOf(query) >= LARGE_BYTES;
  }

  /** Size of what a micro-batch reads of its streams, in bytes; of some sources nobody knows it. */
  private static long sizeOf(LogicalPlan plan) {
    Seq children = plan.children();
    if (children.isEmpty() && plan.isStreaming()) {
      java.math.BigInteger known = plan.stats().sizeInBytes().bigInteger();
      return known.bitLength() < UNKNOWN_BITS ? known.longValue() : 0;
    }
    long size = 0;
    for (int i = 0; i < children.size(); i++) {
      size += sizeOf((LogicalPlan) children.apply(i));
    }
    return size;
  }

  /** Operators with another plan in the place of their leaf. */
  private static LogicalPlan onto(LogicalPlan operators, LogicalPlan leaf) {
    Seq children = operators.children();
    if (children.isEmpty()) {
      return leaf;
    }
    LogicalPlan child = onto((LogicalPlan) children.apply(0), leaf);
    return (LogicalPlan) operators.withNewChildren(sequence(new Object[] {child}));
  }

  private static Seq sequence(Object[] items) {
    List list = new ArrayList(Arrays.asList(items));
    return CollectionConverters.asScala(list).toSeq();
  }

  private static scala.Option none() {
    return None$.MODULE$;
  }

  /** The value of a field that Spark keeps to itself. */
  private static Object field(Object of, String name) {
    try {
      Field found = of.getClass().getDeclaredField(name);
      found.setAccessible(true);
      return found.get(of);
    } catch (ReflectiveOperationException e) {
      throw new IllegalStateException(e);
    }
  }

  private static boolean isOurs(Table table) {
    return table.getClass().getName().equals(PYTHON_TABLE)
        && table.name().equalsIgnoreCase("shard");
  }

  private static SparkSession active() {
    return (SparkSession) SparkSession$.MODULE$.active();
  }

  /** True for appends that only Python workers can make, or that were left to them by a choice. */
  private static boolean isLeft(Map options) {
    SparkSession session = active();
    return "false".equalsIgnoreCase(session.conf().get(SETTING, "true"))
        || "false".equals(valueOf(options, "nativewrites", "true"))
        || !ENVELOPES.contains(valueOf(options, "envelope", "append"))
        || !"append".equals(valueOf(options, "savemode", "append"));
  }

  /** An option's value in small letters; its name may be in any case. */
  private static String valueOf(Map options, String name, String other) {
    for (Object key : options.keySet()) {
      if (name.equalsIgnoreCase((String) key)) {
        return ((String) options.get(key)).toLowerCase(Locale.ROOT);
      }
    }
    return other;
  }

  /** Throws what has come of a request, if it was a failure. */
  private static void throwIfFailed(Map request, Object failure) {
    if (request.get("interrupted") != null) {
      Thread.currentThread().interrupt(); // the calls of Python have cleared it by an exception
    }
    if (failure instanceof Throwable) {
      Platform.throwException((Throwable) failure); // of the JVM: the caller knows its class
    }
    if (request.get("cancelled") != null) {
      Platform.throwException(new InterruptedException((String) request.get("cancelled")));
    }
    if (failure != null) {
      // The class and the words in which Spark shows an error of a writer in a Python process.
      Platform.throwException(
          QueryCompilationErrors$.MODULE$.pythonDataSourceError(
              "commit or abort", "write", (String) failure));
    }
  }

  /**
   * Writes a micro-batch as files of Parquet, and has Python append them.
   *
   * <p>Known to the driver only: what its tasks get is Spark's.
   */
  private static class FilesOfMicroBatch implements BatchWrite {
    private final Function commits;
    private final BatchWrite files;
    private final long number;
    private boolean asked = false;

    FilesOfMicroBatch(Map request, long number) {
      this.commits = (Function) request.get("commits");
      this.files = (BatchWrite) request.get("files");
      this.number = number;
    }

    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return files.createBatchWriterFactory(info);
    }

    public boolean useCommitCoordinator() {
      return files.useCommitCoordinator();
    }

    public void commit(WriterCommitMessage[] messages) {
      files.commit(messages);
      Map request = new HashMap();
      request.put("number", Long.valueOf(number));
      asked = true; // from here on Python alone knows if a record has the files
      throwIfFailed(request, commits.apply(request));
    }

    public void abort(WriterCommitMessage[] messages) {
      if (!asked) {
        files.abort(messages);
        commits.apply(new HashMap());
      }
    }

    public String toString() {
      return "files of micro-batch " + number;
    }
  }

  /** A shard as a table that takes the frame of an append. */
  private static class FrameTable implements SupportsWrite, V1Write, InsertableRelation {
    private final Table own;
    private final Map options;
    private final Function writer;

    FrameTable(Table own, Map options, Function writer) {
      this.own = own;
      this.options = options;
      this.writer = writer;
    }

    public void insert(Dataset frame, boolean overwrite) {
      Map request = new HashMap();
      request.put("frame", frame);
      request.put("options", options);
      Object failure = writer.apply(request);
      throwIfFailed(request, failure);
    }

    public InsertableRelation toInsertableRelation() {
      return this;
    }

    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
      return ((SupportsWrite) own).newWriteBuilder(info);
    }

    public String name() {
      return own.name();
    }

    public String description() {
      return own.name();
    }

    public StructType schema() {
      return own.schema();
    }

    public Set capabilities() {
      return EnumSet.of(TableCapability.V1_BATCH_WRITE);
    }
  }
}
