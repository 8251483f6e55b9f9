package shardline_jvm;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.catalyst.streaming.StreamingRelationV2;
import org.apache.spark.sql.catalyst.streaming.Unassigned$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.SupportsAdmissionControl;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.None$;

/**
 * A streaming source without rows, whose ends are chosen in the driver's Python (driver_stream.py).
 *
 * <p>Spark's thread waits in latestOffset until it is handed an end, or a while has passed. What it
 * waits for is taken by the next trigger: the time of the wait belongs to no micro-batch.
 *
 * <p>One object is the table, its scan and its stream, since it belongs to one run of one query.
 * Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class DriverStream
    implements SupportsRead, ScanBuilder, Scan, MicroBatchStream, SupportsAdmissionControl {
  /** An idle trigger costs as much as one that brings something; who stops a query interrupts it. */
  private static final long PATIENCE_MS = 10000L;

  private String name = "";
  private String first = "";
  private StructType columns;

  private String asked; // the start of a range that Spark wants the end of
  private String found; // that end
  private String report;
  private String error;
  private boolean ended;

  /**
   * The frame to start a query over.
   *
   * @param session Its session.
   * @param name What the stream is of, as people see it.
   * @param columns Of the frame, which has no rows.
   * @param first The offset before anything is read.
   */
  public Dataset frame(SparkSession session, String name, StructType columns, String first) {
    this.name = name;
    this.columns = columns;
    this.first = first;
    return Dataset$.MODULE$.ofRows(
        session,
        new StreamingRelationV2(
            None$.MODULE$,
            name,
            this,
            CaseInsensitiveStringMap.empty(),
            DataTypeUtils$.MODULE$.toAttributes(columns),
            None$.MODULE$,
            None$.MODULE$,
            None$.MODULE$,
            Unassigned$.MODULE$));
  }

  // -- called by the driver's Python -----------------------------------------------------------

  /**
   * The start of the range that Spark waits for the end of; null while it asks for none, and ""
   * once the query has ended.
   */
  public synchronized String asked() {
    if (ended) {
      return "";
    }
    return found == null ? asked : null;
  }

  /** Gives the end of the range that Spark waits for, and what its progress says of the source. */
  public synchronized void give(String end, String status) {
    found = end;
    report = status;
    notifyAll();
  }

  /** Ends the query with an error. */
  public synchronized void fail(String message) {
    error = message;
    notifyAll();
  }

  // -- called by Spark -------------------------------------------------------------------------

  public synchronized Offset latestOffset(Offset start, ReadLimit limit) {
    if (error != null) {
      throw new IllegalStateException(error);
    }
    if (found != null) {
      Offset end = new Text(found);
      asked = null;
      found = null;
      return end;
    }
    asked = start.json();
    try {
      wait(PATIENCE_MS);
    } catch (InterruptedException e) {
      Platform.throwException(e); // the query is stopped
    }
    return null; // nothing new
  }

  public synchronized Offset reportLatestOffset() {
    return report == null ? null : new Text(report);
  }

  public Offset latestOffset() {
    throw new UnsupportedOperationException("Spark asks with the start of the range");
  }

  public Offset initialOffset() {
    return new Text(first);
  }

  public Offset deserializeOffset(String json) {
    return new Text(json);
  }

  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    return new InputPartition[0];
  }

  public PartitionReaderFactory createReaderFactory() {
    return null; // there are no partitions
  }

  public void commit(Offset end) {}

  public synchronized void stop() {
    ended = true;
  }

  public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
    return this;
  }

  public Scan build() {
    return this;
  }

  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return this;
  }

  public Set capabilities() {
    return EnumSet.of(TableCapability.MICRO_BATCH_READ);
  }

  public StructType schema() {
    return columns;
  }

  public StructType readSchema() {
    return columns;
  }

  public String name() {
    return name;
  }

  public String description() {
    return name;
  }

  public String toString() {
    return name;
  }

  /** An offset as the log has it. */
  public static class Text extends Offset {
    private final String json;

    public Text(String json) {
      this.json = json;
    }

    public String json() {
      return json;
    }
  }
}
