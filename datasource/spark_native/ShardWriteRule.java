package shardline_jvm;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.V1Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.errors.QueryCompilationErrors$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.sources.InsertableRelation;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.Some;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Puts a native write in the place of each append to format("shard").
 *
 * <p>Spark has an interface for tables that take a whole frame and write it by themselves, for
 * sources that are older than its tasks of writers (V1Write). The table of an append is exchanged
 * for one that has it, and that hands the frame, as Spark has analysed it, to the driver's Python
 * (write_rule.py). Spark plans and runs the append as any other one: once.
 *
 * <p>Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class ShardWriteRule extends Rule {
  private static final String PYTHON_TABLE =
      "org.apache.spark.sql.execution.datasources.v2.python.PythonTable";

  private static final String SETTING = "spark.shardline.nativeWrites";

  /** Of the others, tasks stage rows that the commit turns into a difference. */
  private static final Set ENVELOPES = new HashSet(Arrays.asList(new Object[] {"append", "diff"}));

  private final Function writer;

  public ShardWriteRule(Function writer) {
    this.writer = writer;
  }

  public TreeNode apply(TreeNode plan) {
    // At the root only: Spark runs each command by a plan of its own.
    if (!(plan instanceof AppendData)) {
      return plan;
    }
    AppendData append = (AppendData) plan;
    NamedRelation to = ((V2WriteCommand) append).table();
    if (!(to instanceof DataSourceV2Relation) || append.analyzedQuery().isEmpty()) {
      return plan;
    }
    DataSourceV2Relation relation = (DataSourceV2Relation) to;
    Table table = relation.table();
    if (!table.getClass().getName().equals(PYTHON_TABLE)
        || !table.name().equalsIgnoreCase("shard")) {
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

  /** True for appends that only Python workers can make, or that were left to them by a choice. */
  private static boolean isLeft(Map options) {
    SparkSession session = (SparkSession) SparkSession$.MODULE$.active();
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
