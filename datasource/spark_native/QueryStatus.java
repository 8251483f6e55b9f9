package shardline_jvm;

import org.apache.spark.sql.streaming.StreamingQuery;

/**
 * Tells the status of a streaming query as JSON. Compiled by Spark's own Janino (compiled_java.py).
 */
public class QueryStatus {
  /** What `StreamingQuery.status` says. */
  public String of(StreamingQuery query) {
    return query.status().json();
  }
}
