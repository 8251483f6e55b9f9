package shardline_jvm;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.nio.channels.Channels;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern$;
import org.apache.spark.sql.catalyst.types.DataTypeUtils$;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.types.StructType;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.math.BigInt;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction0;

/**
 * Runs a physical plan again over other rows. Compiled by Spark's own Janino when the first plan is
 * kept (compiled_java.py), so in raw types and without lambdas.
 *
 * <p>A plan is Spark's own, planned once over leaves whose rows are given later (`given`). At each
 * run the leaves, and all operators above them, are made anew: an operator remembers what it has
 * computed, a broadcast its rows. Only kinds of operators are taken that are known to have nothing
 * else of an earlier run.
 */
public class KeptJobs {
  /** Larger than what is broadcast: two leaves of one partition are joined without an exchange. */
  private static final long BYTES = 1L << 34;

  /** Operators whose only rows are those of their children, when these are made anew. */
  private static final Set KNOWN = new HashSet(Arrays.asList(new Object[] {
      "BroadcastExchangeExec", "BroadcastHashJoinExec", "BroadcastNestedLoopJoinExec",
      "CartesianProductExec", "CoalesceExec", "CollectLimitExec", "ExpandExec", "FilterExec",
      "GenerateExec", "GlobalLimitExec", "HashAggregateExec", "InputAdapter", "LocalLimitExec",
      "ObjectHashAggregateExec", "ProjectExec", "ShuffleExchangeExec", "ShuffledHashJoinExec",
      "SortAggregateExec", "SortExec", "SortMergeJoinExec", "UnionExec", "WholeStageCodegenExec",
      "WindowExec", "WindowGroupLimitExec"}));

  /** Leaves whose rows are a part of the plan. */
  private static final Set CONSTANT = new HashSet(Arrays.asList(new Object[] {
      "LocalTableScanExec", "OneRowRelationExec", "RangeExec"}));

  /** A frame of rows that are given later. */
  public Dataset given(SparkSession session, StructType schema) {
    RDD none = rdd(session.sparkContext(), new ArrayList());
    Statistics size = new Statistics(
        scala.package$.MODULE$.BigInt().apply(BYTES), None$.MODULE$,
        AttributeMap$.MODULE$.empty(), false);
    LogicalPlan leaf = new LogicalRDD(
        DataTypeUtils$.MODULE$.toAttributes(schema), none, SinglePartition$.MODULE$,
        seq(new ArrayList()), false, None$.MODULE$, session, new Some(size), None$.MODULE$, false);
    return Dataset$.MODULE$.ofRows(session, leaf);
  }

  /** The plan of a frame over such leaves; null, and why in `reasons`, if it cannot be kept. */
  public Job keep(Dataset frame, List leaves, List reasons) {
    QueryExecution execution = frame.queryExecution();
    int[] numbers = new int[leaves.size()];
    StructType[] schemas = new StructType[leaves.size()];
    for (int i = 0; i < numbers.length; i++) {
      Dataset leaf = (Dataset) leaves.get(i);
      numbers[i] = ((LogicalRDD) leaf.queryExecution().logical()).rdd().id();
      schemas[i] = leaf.schema();
    }
    if (execution.analyzed().containsPattern(TreePattern$.MODULE$.CURRENT_LIKE())) {
      reasons.add("the time of the query"); // a constant of the plan
      return null;
    }
    SparkPlan plan = execution.executedPlan();
    String reason = refusal(plan, numbers);
    if (reason != null) {
      reasons.add(reason);
      return null;
    }
    return new Job(frame.sparkSession(), execution.analyzed(), inOneStage(plan), numbers, schemas,
        frame.schema());
  }

  /** The plan without exchanges of one partition for one: Spark has one below each join. */
  private static SparkPlan inOneStage(SparkPlan node) {
    Seq children = node.children();
    if (children.isEmpty()) {
      return node;
    }
    List made = new ArrayList();
    for (int i = 0; i < children.size(); i++) {
      made.add(inOneStage((SparkPlan) children.apply(i)));
    }
    if (node instanceof ShuffleExchangeExec && node.outputPartitioning().numPartitions() == 1) {
      SparkPlan child = (SparkPlan) made.get(0);
      if (child.outputPartitioning().numPartitions() == 1) {
        return child;
      }
    }
    return (SparkPlan) ((TreeNode) node).withNewChildren(seq(made));
  }

  /** Why a plan cannot be kept; null if it can. */
  private static String refusal(SparkPlan plan, int[] numbers) {
    String kind = plan.getClass().getSimpleName();
    if (!plan.subqueries().isEmpty()) {
      return "a subquery in " + kind;
    }
    Seq children = plan.children();
    if (children.isEmpty()) {
      if (plan instanceof RDDScanExec) {
        return place((RDDScanExec) plan, numbers) < 0 ? "rows of a file" : null;
      }
      return CONSTANT.contains(kind) ? null : kind;
    }
    if (!KNOWN.contains(kind)) {
      return kind;
    }
    for (int i = 0; i < children.size(); i++) {
      String reason = refusal((SparkPlan) children.apply(i), numbers);
      if (reason != null) {
        return reason;
      }
    }
    return null;
  }

  private static int place(RDDScanExec leaf, int[] numbers) {
    for (int i = 0; i < numbers.length; i++) {
      if (leaf.rdd().id() == numbers[i]) {
        return i;
      }
    }
    return -1;
  }

  private static RDD rdd(SparkContext context, List rows) {
    ClassTag tag = ClassTag$.MODULE$.apply(InternalRow.class);
    return new ParallelCollectionRDD(context, seq(rows), 1, Map$.MODULE$.empty(), tag);
  }

  private static Seq seq(List items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  /** A kept plan. Used by one thread at a time. */
  public static class Job {
    private final SparkSession session;
    private final LogicalPlan logical;
    private final SparkPlan plan;
    private final int[] numbers;
    private final StructType[] schemas;
    private final StructType schema;

    /** The plan, as text. */
    public String toString() {
      return plan.toString();
    }

    Job(SparkSession session, LogicalPlan logical, SparkPlan plan, int[] numbers,
        StructType[] schemas, StructType schema) {
      this.session = session;
      this.logical = logical;
      this.plan = plan;
      this.numbers = numbers;
      this.schemas = schemas;
      this.schema = schema;
    }

    /** The rows of the plan as a stream of Arrow, over those of streams of Arrow, one per leaf. */
    public byte[] run(List streams) throws IOException {
      // Operators find the session of their settings as that of the thread they are made in.
      Option before = SparkSession$.MODULE$.getActiveSession();
      org.apache.spark.sql.classic.SparkSession$.MODULE$.setActiveSession(session);
      try {
        RDD[] rows = new RDD[numbers.length];
        for (int i = 0; i < rows.length; i++) {
          rows[i] = rdd(session.sparkContext(), read((byte[]) streams.get(i), schemas[i]));
        }
        final SparkPlan filled = filled(plan, rows);
        QueryExecution execution = new Execution(session, logical, filled);
        Object found = SQLExecution$.MODULE$.withNewExecutionId(
            execution, new Some("kept plan"), new AbstractFunction0() {
              public Object apply() {
                return filled.executeCollect();
              }
            });
        return written((InternalRow[]) found);
      } finally {
        if (before.isDefined()) {
          SparkSession$.MODULE$.setActiveSession((SparkSession) before.get());
        }
      }
    }

    /** The plan with other rows in its leaves. */
    private SparkPlan filled(SparkPlan node, RDD[] rows) {
      if (node instanceof RDDScanExec) {
        RDDScanExec leaf = (RDDScanExec) node;
        return new RDDScanExec(leaf.output(), rows[place(leaf, numbers)], leaf.name(),
            leaf.outputPartitioning(), leaf.outputOrdering(), leaf.stream());
      }
      Seq children = node.children();
      if (children.isEmpty()) {
        return (SparkPlan) ((TreeNode) node).clone();
      }
      List made = new ArrayList();
      for (int i = 0; i < children.size(); i++) {
        made.add(filled((SparkPlan) children.apply(i), rows));
      }
      return (SparkPlan) ((TreeNode) node).withNewChildren(seq(made));
    }

    private static List read(byte[] stream, StructType schema) throws IOException {
      scala.collection.Iterator batches = ArrowConverters$.MODULE$.getBatchesFromStream(
          Channels.newChannel(new ByteArrayInputStream(stream)));
      scala.collection.Iterator rows = ArrowConverters$.MODULE$.fromBatchIterator(
          batches, schema, "UTC", false, false, null);
      UnsafeProjection projection = UnsafeProjection$.MODULE$.create(schema);
      List found = new ArrayList();
      while (rows.hasNext()) {
        // Their memory is given back with the last one.
        found.add(projection.apply((InternalRow) rows.next()).copy());
      }
      return found;
    }

    private byte[] written(InternalRow[] rows) {
      scala.collection.Iterator streams = ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
          CollectionConverters.asScala(Arrays.asList(rows).iterator()), schema, 0L,
          Long.MAX_VALUE, "UTC", true, false);
      return (byte[]) streams.next();
    }
  }

  /** What Spark knows of the run of a plan that it has not planned for it. */
  private static class Execution extends QueryExecution {
    private final SparkPlan filled;

    Execution(SparkSession session, LogicalPlan logical, SparkPlan filled) {
      super(session, logical, QueryExecution.$lessinit$greater$default$3(),
          QueryExecution.$lessinit$greater$default$4(),
          QueryExecution.$lessinit$greater$default$5(),
          QueryExecution.$lessinit$greater$default$6(),
          QueryExecution.$lessinit$greater$default$7(),
          QueryExecution.$lessinit$greater$default$8());
      this.filled = filled;
    }

    public SparkPlan executedPlan() {
      return filled;
    }
  }
}
