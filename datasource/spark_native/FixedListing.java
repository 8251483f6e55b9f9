package shardline_jvm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.CaseInsensitiveMap;
import org.apache.spark.sql.execution.datasources.NoopCache$;
import org.apache.spark.sql.execution.datasources.PartitionPath;
import org.apache.spark.sql.execution.datasources.PartitionSpec;
import org.apache.spark.sql.execution.datasources.PartitioningAwareFileIndex;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * The files of a native frame, as the plan of the read knows them: no file is looked at.
 *
 * <p>No REFRESH of a view or a path lists them anew. Spark's own list would leave out a file that is
 * missing by then, with a warning in the log and no error.
 *
 * <p>What is the same in all rows of a file, and stands in none of them, is given to Spark as the
 * value of a partition: each batch of columns has it once, and conditions on it leave out files.
 */
public class FixedListing extends PartitioningAwareFileIndex {
  private final String files;
  private final PartitionSpec partitions;
  private final scala.collection.mutable.LinkedHashMap statuses =
      new scala.collection.mutable.LinkedHashMap();
  private final scala.collection.immutable.Map folders;

  /**
   * Lists files.
   *
   * @param constants Whole numbers that each file has one of: names and types.
   * @param files Of each file its size, its constants and its path, separated by characters 0.
   */
  public FixedListing(
      SparkSession session, CaseInsensitiveMap options, StructType constants, String files) {
    super(session, options, Option.empty(), NoopCache$.MODULE$);
    this.files = files;
    Map byValues = new LinkedHashMap();
    String[] texts = files.isEmpty() ? new String[0] : files.split("\0");
    for (int at = 0; at < texts.length; at += constants.length() + 2) {
      List values = new ArrayList();
      for (int number = 1; number <= constants.length(); number++) {
        values.add(Long.valueOf(texts[at + number]));
      }
      Path path = new Path(texts[at + constants.length() + 1]);
      long size = Long.parseLong(texts[at]);
      FileStatus status = new FileStatus(size, false, 1, 1 << 27, 0, path);
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
}
