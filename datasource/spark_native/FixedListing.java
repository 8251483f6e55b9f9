package shardline_jvm;

import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.execution.datasources.FileStatusCache;
import scala.Option;

/**
 * The files of a native frame, which no REFRESH of a view or a path lists anew.
 *
 * <p>Spark empties the cache of a frame's listing for a refresh, and looks at each file again. A file
 * that is missing then has no rows, with a warning in the log and no error, and the times of change,
 * by which native frames carry the times of parts, are those of the file system. What a frame reads
 * is fixed when it is made.
 */
public class FixedListing extends FileStatusCache {
  private final Map statuses = new HashMap();

  public Option getLeafFiles(Path path) {
    return Option.apply(statuses.get(path));
  }

  public void putLeafFiles(Path path, FileStatus[] files) {
    statuses.put(path, files);
  }

  public void invalidateAll() {}
}
