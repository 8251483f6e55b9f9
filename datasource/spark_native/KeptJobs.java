package shardline_jvm;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.ref.WeakReference;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.OpenOption;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.ShuffleDependency;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.metrics.MetricsSystem;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.Expression;
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
import org.apache.spark.sql.execution.CoalesceExec;
import org.apache.spark.sql.execution.CollapseCodegenStages;
import org.apache.spark.sql.execution.InputAdapter;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.SQLExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.SparkPlanInfo$;
import org.apache.spark.sql.execution.UnionExec;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.execution.exchange.ShuffleExchangeExec;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.ui.SparkPlanGraph;
import org.apache.spark.sql.execution.ui.SparkPlanGraph$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.Iterator;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction0;

/**
 * Runs a physical plan again and again over other rows, in the driver. Compiled by Spark's own
 * Janino when the first plan is kept (compiled_java.py), so in raw types and without lambdas.
 *
 * <p>A plan is Spark's own, planned once over leaves whose rows are given later (`given`), of one
 * partition, without an exchange. What Spark makes of it to run it, RDDs and compiled code, is kept
 * as well: a run computes that one partition, as a task would, in the thread of its caller. So it
 * costs neither a job, with its closures cleaned, serialized and scheduled, nor generated code.
 * Spark knows of no task then, and of no SQL execution: to tell it of one takes as long as all else
 * of a run over few rows. What the operators of a run have counted is noted here (`counted`), under
 * the description by which Spark would know its execution.
 */
public class KeptJobs {
  /** Larger than what is broadcast: two leaves of one partition are joined without an exchange. */
  private static final long BYTES = 1L << 34;

  /** Operators that have nothing of an earlier run: neither rows nor the results of a stage. */
  private static final Set KNOWN = new HashSet(Arrays.asList(new Object[] {
      "CartesianProductExec", "CoalesceExec", "CollectLimitExec", "ExpandExec", "FilterExec",
      "GenerateExec", "GlobalLimitExec", "HashAggregateExec", "InputAdapter", "LocalLimitExec",
      "MergingSessionsExec", "ObjectHashAggregateExec", "ProjectExec", "ShuffledHashJoinExec",
      "SortAggregateExec", "SortExec", "SortMergeJoinExec", "TakeOrderedAndProjectExec",
      "UnionExec", "UpdatingSessionsExec", "WholeStageCodegenExec", "WindowExec",
      "WindowGroupLimitExec"}));

  /** Leaves whose rows are a part of the plan. */
  private static final Set CONSTANT = new HashSet(Arrays.asList(new Object[] {
      "LocalTableScanExec", "OneRowRelationExec", "RangeExec"}));

  /** What is in the names of types whose values are kept by reference without generated code. */
  private static final String[] NOT_COPIED = {"collate", "variant", "geometry", "geography"};

  /** Most runs whose counts wait for somebody to ask; of more, the oldest are forgotten. */
  private static final int COUNTED_MAX = 4096;

  /** Numbers of jobs, by which their plans are asked for. */
  private static final AtomicLong NUMBERS = new AtomicLong();

  /** Jobs that live, by number: weakly, as nobody says that a plan is given up. */
  private static final Map JOBS = new ConcurrentHashMap();

  /** What runs have counted, in their order. */
  private static final LinkedBlockingDeque COUNTED = new LinkedBlockingDeque(COUNTED_MAX);

  private static final String FACTORY_MODE = "spark.sql.codegen.factoryMode";

  /** Spark's own tasks have numbers above. */
  private static final AtomicLong TASKS = new AtomicLong(-1024L);

  /** A frame of rows that are given later. */
  public Dataset given(SparkSession session, StructType schema) {
    Statistics size = new Statistics(
        scala.package$.MODULE$.BigInt().apply(BYTES), None$.MODULE$,
        AttributeMap$.MODULE$.empty(), false);
    LogicalPlan leaf = new LogicalRDD(
        DataTypeUtils$.MODULE$.toAttributes(schema), new Rows(session.sparkContext(), schema),
        SinglePartition$.MODULE$, seq(new ArrayList()), false, None$.MODULE$, session,
        new Some(size), None$.MODULE$, false);
    return Dataset$.MODULE$.ofRows(session, leaf);
  }

  /** The plan of a frame over such leaves; null, and why in `reasons`, if it cannot be kept. */
  public Job keep(Dataset frame, List leaves, List reasons) {
    // Operators find the session of their settings as that of the thread they are made in.
    Option before = SparkSession$.MODULE$.getActiveSession();
    org.apache.spark.sql.classic.SparkSession$.MODULE$.setActiveSession(frame.sparkSession());
    try {
      return kept(frame, leaves, reasons);
    } finally {
      if (before.isDefined()) {
        SparkSession$.MODULE$.setActiveSession((SparkSession) before.get());
      } else {
        SparkSession$.MODULE$.clearActiveSession();
      }
    }
  }

  /**
   * What runs have counted since the last call, as JSON: a list of the job's number, the run's
   * description, and its counts by the number of the counter, as Spark writes them for people.
   */
  public String counted() throws IOException {
    List found = new ArrayList();
    COUNTED.drainTo(found);
    return new ObjectMapper().writeValueAsString(found);
  }

  /** The plan of a job, as Spark's status store would have it; null if the job is given up. */
  public SparkPlanGraph graph(long number) {
    WeakReference found = (WeakReference) JOBS.get(Long.valueOf(number));
    Job job = found == null ? null : (Job) found.get();
    return job == null ? null
        : SparkPlanGraph$.MODULE$.apply(SparkPlanInfo$.MODULE$.fromSparkPlan(job.plan));
  }

  private static Job kept(Dataset frame, List leaves, List reasons) {
    QueryExecution execution = frame.queryExecution();
    Rows[] rows = new Rows[leaves.size()];
    for (int i = 0; i < rows.length; i++) {
      Dataset leaf = (Dataset) leaves.get(i);
      rows[i] = (Rows) ((LogicalRDD) leaf.queryExecution().logical()).rdd();
    }
    String reason = null;
    if (execution.analyzed().containsPattern(TreePattern$.MODULE$.CURRENT_LIKE())) {
      reason = "the time of the query"; // a constant of the plan
    } else if (execution.analyzed().containsPattern(TreePattern$.MODULE$.SCALA_UDF())) {
      reason = "a function of somebody else"; // which may block, and only a task can be killed
    }
    SparkPlan plan = new CollapseCodegenStages(new AtomicInteger())
        .apply(inOnePartition(execution.executedPlan()));
    reason = reason == null ? refusal(plan, Arrays.asList(rows)) : reason;
    if (reason == null) {
      RDD result = plan.execute();
      if (result.getNumPartitions() == 1 && !hasShuffle(result)) {
        return new Job(frame.sparkSession(), plan, result, rows, frame.schema());
      }
      reason = "several stages";
    }
    reasons.add(reason);
    return null;
  }

  /** True if rows of an RDD come from an earlier stage, which nobody would run. */
  private static boolean hasShuffle(RDD rdd) {
    Seq dependencies = rdd.dependencies();
    for (int i = 0; i < dependencies.size(); i++) {
      Dependency one = (Dependency) dependencies.apply(i);
      if (one instanceof ShuffleDependency || hasShuffle(one.rdd())) {
        return true;
      }
    }
    return false;
  }

  /**
   * The plan in one partition, before code is generated: an exchange brings rows together that
   * belong together, and so does one partition; branches of a union come one after the other.
   */
  private static SparkPlan inOnePartition(SparkPlan node) {
    Seq children = node.children();
    List made = new ArrayList();
    for (int i = 0; i < children.size(); i++) {
      made.add(inOnePartition((SparkPlan) children.apply(i)));
    }
    if (node instanceof WholeStageCodegenExec || node instanceof InputAdapter) {
      return (SparkPlan) made.get(0);
    }
    if (node instanceof ShuffleExchangeExec) {
      return inOne((SparkPlan) made.get(0));
    }
    SparkPlan over =
        made.isEmpty() ? node : (SparkPlan) ((TreeNode) node).withNewChildren(seq(made));
    return node instanceof UnionExec ? inOne(over) : over;
  }

  private static SparkPlan inOne(SparkPlan plan) {
    return isOne(plan) ? plan : new CoalesceExec(1, plan);
  }

  private static boolean isOne(SparkPlan plan) {
    return plan.outputPartitioning().numPartitions() == 1;
  }

  /** Why a plan cannot be kept; null if it can. */
  private static String refusal(SparkPlan plan, List rows) {
    String kind = plan.getClass().getSimpleName();
    if (!plan.subqueries().isEmpty()) {
      return "a subquery in " + kind;
    }
    Seq children = plan.children();
    if (children.isEmpty()) {
      if (plan instanceof RDDScanExec && rows.contains(((RDDScanExec) plan).rdd())) {
        return null;
      }
      return CONSTANT.contains(kind) ? null : kind;
    }
    if (!KNOWN.contains(kind)) {
      return kind;
    }
    for (int i = 0; i < children.size(); i++) {
      String reason = refusal((SparkPlan) children.apply(i), rows);
      if (reason != null) {
        return reason;
      }
    }
    return null;
  }

  /**
   * True if operators copy what they keep of a row although no code is generated for them. Spark's
   * interpreter does so for text without a collation, arrays, maps and structs; any other value of
   * no fixed length would point to memory that the next row is written to.
   */
  private static boolean copiesWhatItKeeps(TreeNode node) {
    if (node instanceof Expression && isReferredTo(typeOf((Expression) node))) {
      return false;
    }
    if (node instanceof SparkPlan && !allCopy(((SparkPlan) node).expressions())) {
      return false;
    }
    return allCopy(node.children());
  }

  private static boolean allCopy(Seq nodes) {
    for (int i = 0; i < nodes.size(); i++) {
      if (!copiesWhatItKeeps((TreeNode) nodes.apply(i))) {
        return false;
      }
    }
    return true;
  }

  private static boolean isReferredTo(String type) {
    for (int i = 0; i < NOT_COPIED.length; i++) {
      if (type.contains(NOT_COPIED[i])) {
        return true;
      }
    }
    return false;
  }

  private static String typeOf(Expression expression) {
    try {
      return expression.dataType().catalogString();
    } catch (Exception e) {
      return ""; // it is no value, as a window's frame
    }
  }

  private static Seq seq(List items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  /** A part of Spark's environment, by a handle: not all classes of its methods are there. */
  private static Object environment(String name, Class kind) {
    try {
      MethodHandles.Lookup lookup = MethodHandles.lookup();
      Class environment = SparkEnv.class;
      Object found = lookup.findStatic(environment, "get", MethodType.methodType(environment))
          .invokeWithArguments(new ArrayList());
      return lookup.findVirtual(environment, name, MethodType.methodType(kind))
          .bindTo(found).invokeWithArguments(new ArrayList());
    } catch (Throwable e) {
      throw new IllegalStateException(e);
    }
  }

  /** Rows of this process, in one partition. It is computed in the driver only. */
  private static class Rows extends RDD {
    private final StructType schema;
    private final transient UnsafeProjection projection; // Spark checks what closures refer to
    private List rows = new ArrayList();

    Rows(SparkContext context, StructType schema) {
      super(context, seq(new ArrayList()), ClassTag$.MODULE$.apply(InternalRow.class));
      this.schema = schema;
      this.projection = UnsafeProjection$.MODULE$.create(schema);
    }

    /** Take other rows: those of a file with a stream of Arrow. */
    void take(String file) throws IOException {
      FileChannel channel = FileChannel.open(Paths.get(file), new OpenOption[0]);
      try {
        take(ArrowConverters$.MODULE$.getBatchesFromStream(channel));
      } finally {
        channel.close();
      }
    }

    private void take(Iterator batches) {
      Iterator found = ArrowConverters$.MODULE$.fromBatchIterator(
          batches, schema, "UTC", false, false, null);
      rows = new ArrayList();
      while (found.hasNext()) {
        // Their memory is given back with the last one.
        rows.add(projection.apply((InternalRow) found.next()).copy());
      }
    }

    void forget() {
      rows = new ArrayList();
    }

    public Iterator compute(Partition split, TaskContext context) {
      return CollectionConverters.asScala(rows.iterator());
    }

    public Partition[] getPartitions() {
      return new Partition[] {new OnePartition()};
    }
  }

  private static class OnePartition implements Partition {
    public int index() {
      return 0;
    }

    public boolean org$apache$spark$Partition$$super$equals(Object other) {
      return super.equals(other);
    }
  }

  /** A kept plan. Used by one thread at a time. */
  public static class Job {
    private final long number = NUMBERS.incrementAndGet();
    private final SparkSession session;
    private final SparkPlan plan;
    private final List metrics = new ArrayList();
    private final RDD result;
    private final Rows[] leaves;
    private final StructType schema;

    Job(SparkSession session, SparkPlan plan, RDD result, Rows[] leaves, StructType schema) {
      this.session = session;
      this.plan = plan;
      this.result = result;
      this.leaves = leaves;
      this.schema = schema;
      collect(plan, metrics);
      java.util.Iterator known = JOBS.values().iterator();
      while (known.hasNext()) {
        if (((WeakReference) known.next()).get() == null) {
          known.remove();
        }
      }
      JOBS.put(Long.valueOf(number), new WeakReference(this));
    }

    /** True if a run may do without generated code. */
    public boolean mayBeInterpreted() {
      return copiesWhatItKeeps(plan);
    }

    /** The plan, as text. */
    public String toString() {
      return plan.toString();
    }

    /**
     * Writes the rows of the plan to a file, over those of other files, one per leaf: all of them
     * streams of Arrow (`row_files`). Returns how many bytes it has written. Where `isTold` is
     * false nothing is counted: somebody else counts the same rows. Where `isInterpreted`, what
     * operators make for themselves in each run is interpreted, and no code is generated for it.
     */
    public int run(String prefix, boolean isTold, final boolean isInterpreted)
        throws IOException {
      for (int i = 0; i < leaves.length; i++) {
        leaves[i].take(prefix + i);
      }
      plan.resetMetrics();
      try {
        // As for an execution of Spark's: expressions look for the settings of the session among the
        // properties of the task.
        byte[] rows = (byte[]) SQLExecution$.MODULE$.withSQLConfPropagated(
            session, new AbstractFunction0() {
              public Object apply() {
                return isInterpreted ? interpreted() : computed();
              }
            });
        if (isTold) {
          tell();
        }
        // Over what is there: to cut a file off and let it grow again costs more than to write it.
        Files.write(Paths.get(prefix + "result"), rows, new OpenOption[] {StandardOpenOption.WRITE});
        return rows.length;
      } finally {
        for (int i = 0; i < leaves.length; i++) {
          leaves[i].forget();
        }
      }
    }

    /**
     * The one partition, without code that is generated for this run. An aggregate and a sort each
     * make projections and orderings in each task. Their classes are cached, but by their source,
     * which is written anew: 1 of 1.5 ms for a join and an aggregate of one row.
     */
    private byte[] interpreted() {
      SparkContext context = session.sparkContext();
      String before = context.getLocalProperty(FACTORY_MODE);
      context.setLocalProperty(FACTORY_MODE, "NO_CODEGEN");
      try {
        return computed();
      } finally {
        context.setLocalProperty(FACTORY_MODE, before);
      }
    }

    /** The one partition, computed as a task does. */
    private byte[] computed() {
      SparkContext context = session.sparkContext();
      long number = TASKS.decrementAndGet();
      TaskMemoryManager memory = new TaskMemoryManager(
          (MemoryManager) environment("memoryManager", MemoryManager.class), number);
      // Settings of the session are among these properties: expressions look for them there.
      TaskContextImpl task = new TaskContextImpl(0, 0, 0, number, 0, 1, memory,
          context.getLocalProperties(),
          (MetricsSystem) environment("metricsSystem", MetricsSystem.class), new TaskMetrics(),
          scala.package$.MODULE$.BigDecimal().apply(1), Map$.MODULE$.empty());
      Option error = None$.MODULE$;
      TaskContext$.MODULE$.setTaskContext(task);
      try {
        Iterator rows = result.iterator(result.partitions()[0], task);
        return (byte[]) ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
            rows, schema, 0L, Long.MAX_VALUE, "UTC", true, false).next();
      } catch (Throwable e) {
        error = new Some(e);
        Platform.throwException(e);
        return null;
      } finally {
        try {
          task.markTaskCompleted(error); // operators give back what they have
        } finally {
          memory.cleanUpAllAllocatedMemory();
          TaskContext$.MODULE$.unset();
        }
      }
    }

    /** Notes what the operators have counted. */
    private void tell() {
      Map counts = new HashMap();
      for (int i = 0; i < metrics.size(); i++) {
        SQLMetric metric = (SQLMetric) metrics.get(i);
        counts.put(String.valueOf(metric.id()), inWords(metric));
      }
      Object description =
          session.sparkContext().getLocalProperty("spark.job.description");
      Object[] run = {Long.valueOf(number), description == null ? "" : description, counts};
      while (!COUNTED.offer(run)) {
        COUNTED.poll();
      }
    }

    private static String inWords(SQLMetric metric) {
      long value = metric.isZero() ? 0L : metric._value(); // it may begin below 0
      if ("nsTiming".equals(metric.metricType())) {
        return value / 1000000L + " ms";
      }
      return "timing".equals(metric.metricType()) ? value + " ms" : String.valueOf(value);
    }

    private static void collect(SparkPlan node, List counted) {
      Iterator metrics = node.metrics().valuesIterator();
      while (metrics.hasNext()) {
        counted.add(metrics.next());
      }
      Seq children = node.children();
      for (int i = 0; i < children.size(); i++) {
        collect((SparkPlan) children.apply(i), counted);
      }
    }
  }
}
