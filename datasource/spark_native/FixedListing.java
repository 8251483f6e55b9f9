package shardline_jvm;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.io.Serializable;
import java.nio.file.Files;
import java.nio.file.InvalidPathException;
import java.nio.file.Paths;
import java.nio.file.attribute.FileTime;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.zip.CRC32;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap;
import org.apache.spark.sql.execution.datasources.FileStatusWithMetadata;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionDirectory;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

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
 */
public class FixedListing extends PartitioningAwareFileIndex {
  private final String files;
  private final PartitionSpec partitions;
  private final scala.collection.mutable.LinkedHashMap statuses =
      new scala.collection.mutable.LinkedHashMap();
  private final scala.collection.immutable.Map folders;
  private final Map looks = new HashMap();

  /**
   * Lists files.
   *
   * @param constants Whole numbers that each file has one of: names and types.
   * @param files Of each file its size, its constants and its path, separated by characters 0.
   * @param seen Of each file what `Look` compares, separated by characters 0; empty if none is
   *     looked at.
   */
  public FixedListing(
      SparkSession session,
      CaseInsensitiveMap options,
      StructType constants,
      String files,
      String seen) {
    super(session, options, Option.empty(), NoopCache$.MODULE$);
    this.files = files;
    Map byValues = new LinkedHashMap();
    String[] texts = files.isEmpty() ? new String[0] : files.split("\0");
    String[] seenOfFile = seen.split("\0");
    for (int at = 0; at < texts.length; at += constants.length() + 2) {
      List values = new ArrayList();
      for (int number = 1; number <= constants.length(); number++) {
        values.add(Long.valueOf(texts[at + number]));
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
    if (looks.isEmpty()) {
      return found;
    }
    List made = new ArrayList();
    for (Object one : CollectionConverters.asJava(found)) {
      PartitionDirectory directory = (PartitionDirectory) one;
      List files = new ArrayList();
      for (Object file : CollectionConverters.asJava(directory.files())) {
        FileStatus status = ((FileStatusWithMetadata) file).fileStatus();
        Object look = looks.get(status.getPath());
        files.add(
            new FileStatusWithMetadata(
                status, new scala.collection.immutable.Map.Map1("_shardline_look", look)));
      }
      made.add(
          new PartitionDirectory(
              directory.values(), CollectionConverters.asScala(files).toSeq()));
    }
    return CollectionConverters.asScala(made).toSeq();
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
