package shardline_jvm;

import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.UUID;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.spark.internal.io.FileCommitProtocol;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.datasources.BasicWriteJobStatsTracker;
import org.apache.spark.sql.execution.datasources.FileFormatWriter;
import org.apache.spark.sql.execution.datasources.WriteJobDescription;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.execution.datasources.v2.FileBatchWrite;
import org.apache.spark.sql.execution.streaming.ManifestFileCommitProtocol;
import org.apache.spark.sql.execution.streaming.sinks.SinkFileStatus;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.SerializableConfiguration;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction0;

/**
 * The Parquet files of one write, in one folder, with the list of those whose tasks Spark took.
 *
 * <p>Hadoop's way to keep each task's files exactly once is to rename them, twice. On an object
 * store a rename is a copy of the file, and not atomic. Here the tasks write files under the names
 * that they keep, as those of Spark's own streaming file sink do (ManifestFileCommitProtocol), and
 * as Delta's: what a task that counts has written comes with its result. Files of any other task
 * may stay in the folder; they are not on the list.
 *
 * <p>Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class TaskFiles implements BatchWrite {
  private final AccumulatorV2 rows;
  private final BasicWriteJobStatsTracker tracker;
  private final Committed committed;
  private final SparkSession settings;
  private final StructType columns;
  private final Map options;
  private final String url;
  private final Configuration hadoop;
  private BatchWrite files;

  /**
   * A write into a new folder.
   *
   * @param settings session with the settings of the files
   * @param columns schema of the files
   * @param options options of Spark's Parquet writer
   * @param url the folder's
   */
  public TaskFiles(Object settings, Object columns, Object options, Object url) {
    this.settings = (SparkSession) settings;
    this.columns = (StructType) columns;
    this.options = Map$.MODULE$.from(CollectionConverters.asScala((java.util.Map) options));
    this.url = (String) url;
    this.committed = new Committed(this.url);
    this.hadoop = this.settings.sessionState().newHadoopConfWithOptions(this.options);
    Map counts = BasicWriteJobStatsTracker.metrics();
    this.rows = (AccumulatorV2) counts.apply("numOutputRows");
    this.tracker =
        new BasicWriteJobStatsTracker(new SerializableConfiguration(this.hadoop), counts);
  }

  /** Runs the query of a frame, whose rows are written. */
  public void write(Dataset frame) {
    SparkSession before = (SparkSession) SparkSession$.MODULE$.active();
    SparkSession$.MODULE$.setActiveSession(settings); // where Spark looks for settings of files
    try {
      QueryExecution query = frame.queryExecution();
      SQLExecution.withNewExecutionId(query, new Some("save"), new Writing(this, query));
    } finally {
      SparkSession$.MODULE$.setActiveSession(before);
    }
  }

  private void write(QueryExecution query) {
    FileFormatWriter.write(
        settings,
        query.executedPlan(),
        new ParquetFileFormat(),
        committed,
        new FileFormatWriter.OutputSpec(url, nothing(), query.analyzed().output()),
        hadoop,
        sequence(new Object[0]),
        none(),
        sequence(new Object[] {tracker}),
        options,
        0,
        FileFormatWriter.write$default$12());
  }

  /** Number of rows of the files on the list. */
  public long rows() {
    return ((Long) rows.value()).longValue();
  }

  /** A line for each file on the list: its size in bytes, and its name in the folder. */
  public String list() {
    return committed.list.toString();
  }

  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    SparkSession before = (SparkSession) SparkSession$.MODULE$.active();
    SparkSession$.MODULE$.setActiveSession(settings); // as above
    try {
      Job job = Job.getInstance(hadoop);
      job.setOutputKeyClass(Void.class);
      job.setOutputValueClass(InternalRow.class);
      FileOutputFormat.setOutputPath(job, new Path(url));
      files = new FileBatchWrite(job, description(job), committed);
    } catch (java.io.IOException e) {
      throw new java.io.UncheckedIOException(e);
    } finally {
      SparkSession$.MODULE$.setActiveSession(before);
    }
    return files.createBatchWriterFactory(info);
  }

  /** What Spark's own writers of files (FileWrite) tell their tasks. */
  private WriteJobDescription description(Job job) {
    ParquetFileFormat format = new ParquetFileFormat();
    Seq attributes = DataTypeUtils.toAttributes(columns);
    return new WriteJobDescription(
        UUID.randomUUID().toString(),
        new SerializableConfiguration(job.getConfiguration()),
        format.prepareWrite(settings, job, options, columns), // changes the job's settings
        attributes,
        attributes,
        sequence(new Object[0]),
        none(),
        url,
        nothing(),
        Long.parseLong((String) options.apply("maxRecordsPerFile")),
        settings.sessionState().conf().sessionLocalTimeZone(),
        sequence(new Object[] {tracker}));
  }

  public boolean useCommitCoordinator() {
    return files.useCommitCoordinator();
  }

  public void commit(WriterCommitMessage[] messages) {
    files.commit(messages);
  }

  public void abort(WriterCommitMessage[] messages) {}

  private static Seq sequence(Object[] items) {
    List list = new ArrayList(Arrays.asList(items));
    return CollectionConverters.asScala(list).toSeq();
  }

  private static Map nothing() {
    return (Map) Map$.MODULE$.empty();
  }

  private static Option none() {
    return None$.MODULE$;
  }

  private static class Writing extends AbstractFunction0 {
    private final TaskFiles files;
    private final QueryExecution query;

    Writing(TaskFiles files, QueryExecution query) {
      this.files = files;
      this.query = query;
    }

    public Object apply() {
      files.write(query);
      return null;
    }
  }

  /**
   * Keeps the list in the driver; what the tasks get is Spark's own class, which they know.
   *
   * <p>Nothing is done for a job that fails: its folder is deleted as a whole.
   */
  private static class Committed extends ManifestFileCommitProtocol {
    final StringBuilder list = new StringBuilder();
    private final String job;
    private final String url;

    Committed(String url) {
      this(UUID.randomUUID().toString(), url);
    }

    private Committed(String job, String url) {
      super(job, url);
      this.job = job;
      this.url = url;
    }

    public void setupJob(JobContext context) {}

    public void onTaskCommit(FileCommitProtocol.TaskCommitMessage message) {}

    public void commitJob(JobContext context, Seq messages) {
      for (int i = 0; i < messages.size(); i++) {
        Seq written = (Seq) ((FileCommitProtocol.TaskCommitMessage) messages.apply(i)).obj();
        for (int j = 0; j < written.size(); j++) {
          SinkFileStatus file = (SinkFileStatus) written.apply(j);
          String name = new Path(URI.create(file.path())).getName();
          list.append(file.size()).append(' ').append(name).append('\n');
        }
      }
    }

    public void abortJob(JobContext context) {}

    protected Object writeReplace() {
      return new ManifestFileCommitProtocol(job, url);
    }
  }
}
