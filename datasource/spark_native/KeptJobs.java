package shardline_jvm;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.lang.ref.WeakReference;
import java.nio.ByteBuffer;
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
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Future;
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
import org.apache.spark.serializer.Serializer;
import org.apache.spark.serializer.SerializerInstance;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeMap$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.LocalLimit;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.catalyst.plans.logical.Window;
import org.apache.spark.sql.catalyst.plans.physical.HashPartitioning;
import org.apache.spark.sql.catalyst.plans.physical.Partitioning;
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
import org.apache.spark.util.AccumulatorV2;
import org.apache.spark.util.TaskCompletionListener;
import org.apache.spark.util.ThreadUtils$;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag$;
import scala.runtime.AbstractFunction0;
import scala.runtime.AbstractFunction1;

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
 *
 * <p>Over many rows a plan is kept in pieces (`keepInPieces`): its one leaf says that rows with the
 * same value of a column are in the same partition, and where Spark's own planner needs no exchange
 * then, each partition is computed for itself, by as many threads. Each thread has a copy of what it
 * runs, made as Spark makes one for each task: expressions may keep what they have seen last.
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

  /** Types of which equal values are one value, whatever a plan compares: by these rows are split. */
  private static final Set SPLIT_BY = new HashSet(Arrays.asList(new Object[] {
      "tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "string",
      "binary", "boolean"}));

  /** Columns that are tried: each costs a physical plan. */
  private static final int TRIED_MAX = 3;

  /** Names of the files with the rows of a leaf, by its number, for as long as a run lasts. */
  private static final Map FILES = new ConcurrentHashMap();

  /** Computes pieces, but for the first of each run. */
  private static final ExecutorService THREADS =
      ThreadUtils$.MODULE$.newDaemonCachedThreadPool("shardline-kept-job");

  private static final String FACTORY_MODE = "spark.sql.codegen.factoryMode";

  /** Spark's own tasks have numbers above. */
  private static final AtomicLong TASKS = new AtomicLong(-1024L);

  /** A frame of rows that are given later. */
  public Dataset given(SparkSession session, StructType schema) {
    Statistics size = new Statistics(
        scala.package$.MODULE$.BigInt().apply(BYTES), None$.MODULE$,
        AttributeMap$.MODULE$.empty(), false);
    return Dataset$.MODULE$.ofRows(session, leaf(
        session, DataTypeUtils$.MODULE$.toAttributes(schema), new Rows(session, schema, 1),
        SinglePartition$.MODULE$, size));
  }

  private static LogicalPlan leaf(
      SparkSession session, Seq output, Rows rows, Partitioning partitioning, Statistics size) {
    return new LogicalRDD(
        output, rows, partitioning, seq(new ArrayList()), false, None$.MODULE$, session,
        new Some(size), None$.MODULE$, false);
  }

  /** The plan of a frame over such leaves; null, and why in `reasons`, if it cannot be kept. */
  public Job keep(final Dataset frame, final List leaves, final List reasons) {
    return (Job) inSessionOf(frame, new AbstractFunction0() {
      public Object apply() {
        return kept(frame, leaves, reasons);
      }
    });
  }

  /**
   * The plan of a frame over one such leaf, in so many pieces; null if there is no column by which
   * rows can be split. `pieceColumn` says which it is. Of the result each piece gives `most` rows,
   * or all if that is negative.
   */
  public Job keepInPieces(
      final Dataset frame, final Dataset leaf, final int pieces, final int most) {
    return (Job) inSessionOf(frame, new AbstractFunction0() {
      public Object apply() {
        return keptInPieces(frame, rowsOf(leaf), pieces, most);
      }
    });
  }

  private static Object inSessionOf(Dataset frame, AbstractFunction0 made) {
    // Operators find the session of their settings as that of the thread they are made in.
    Option before = SparkSession$.MODULE$.getActiveSession();
    org.apache.spark.sql.classic.SparkSession$.MODULE$.setActiveSession(frame.sparkSession());
    try {
      return made.apply();
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
      rows[i] = rowsOf((Dataset) leaves.get(i));
    }
    String reason = refusal(execution.analyzed());
    SparkPlan plan = new CollapseCodegenStages(new AtomicInteger())
        .apply(inOnePartition(execution.executedPlan()));
    reason = reason == null ? refusal(plan, Arrays.asList(rows)) : reason;
    if (reason == null) {
      RDD result = plan.execute();
      if (result.getNumPartitions() == 1 && !hasShuffle(result)) {
        return new Job(frame.sparkSession(), plan, result, rows, frame.schema(), -1);
      }
      reason = "several stages";
    }
    reasons.add(reason);
    return null;
  }

  private static Rows rowsOf(Dataset leaf) {
    return (Rows) ((LogicalRDD) leaf.queryExecution().logical()).rdd();
  }

  private static Job keptInPieces(Dataset frame, Rows rows, int pieces, int most) {
    LogicalPlan analysed = frame.queryExecution().analyzed();
    if (refusal(analysed) != null || !analysed.deterministic()) {
      return null;
    }
    List columns = columnsToSplitBy(frame.queryExecution().optimizedPlan(), rows);
    for (int i = 0; i < columns.size() && i < TRIED_MAX; i++) {
      int column = ((Integer) columns.get(i)).intValue();
      Rows split = new Rows(frame.sparkSession(), rows.schema, pieces);
      LogicalPlan inPieces = split(frame.sparkSession(), analysed, rows, split, column);
      if (most >= 0) {
        inPieces = new LocalLimit(Literal$.MODULE$.apply(Integer.valueOf(most)), inPieces);
      }
      SparkPlan plan = Dataset$.MODULE$.ofRows(frame.sparkSession(), inPieces)
          .queryExecution().executedPlan();
      // An exchange is refused: by it Spark says that rows of different partitions have to meet.
      if (refusal(plan, Arrays.asList(new Object[] {split})) == null) {
        RDD result = plan.execute();
        if (!hasShuffle(result)) {
          return new Job(
              frame.sparkSession(), plan, result, new Rows[] {split}, frame.schema(), column);
        }
      }
    }
    return null;
  }

  /** A plan over other rows, whose partitions are told by one column. */
  private static LogicalPlan split(
      SparkSession session, LogicalPlan node, Rows rows, Rows split, int column) {
    if (node instanceof LogicalRDD && ((LogicalRDD) node).rdd() == rows) {
      List key = new ArrayList();
      key.add(node.output().apply(column));
      return leaf(session, node.output(), split, new HashPartitioning(seq(key), split.pieces),
          node.stats());
    }
    List made = new ArrayList();
    for (int i = 0; i < node.children().size(); i++) {
      made.add(split(session, (LogicalPlan) node.children().apply(i), rows, split, column));
    }
    return made.isEmpty() ? node : (LogicalPlan) ((TreeNode) node).withNewChildren(seq(made));
  }

  /**
   * Numbers of the columns of a leaf by which an optimized plan groups, as they are, or of all if it
   * groups by nothing. Those that do not do are found out by planning.
   */
  private static List columnsToSplitBy(LogicalPlan plan, Rows rows) {
    List leaves = new ArrayList();
    Map aliases = new HashMap();
    List keys = new ArrayList();
    noteColumns(plan, rows, leaves, aliases, keys);
    List found = new ArrayList();
    for (int k = 0; k < keys.size(); k++) {
      Object id = keys.get(k);
      while (aliases.containsKey(id)) {
        id = aliases.get(id);
      }
      for (int i = 0; i < leaves.size(); i++) {
        addColumn(found, (LogicalPlan) leaves.get(i), id);
      }
    }
    if (keys.isEmpty() && !leaves.isEmpty()) {
      addColumn(found, (LogicalPlan) leaves.get(0), null);
    }
    return found;
  }

  /** Adds the number of an output column by its id, or of all columns. */
  private static void addColumn(List found, LogicalPlan leaf, Object id) {
    for (int i = 0; i < leaf.output().size(); i++) {
      Attribute column = (Attribute) leaf.output().apply(i);
      Integer number = Integer.valueOf(i);
      boolean isMeant = id == null || column.exprId().equals(id);
      if (isMeant && isSplitBy(column) && !found.contains(number)) {
        found.add(number);
      }
    }
  }

  private static boolean isSplitBy(Attribute column) {
    String type = column.dataType().catalogString();
    return SPLIT_BY.contains(type) || type.startsWith("decimal");
  }

  /** Notes leaves of these rows, columns by the ids of their new names, and ids of keys. */
  private static void noteColumns(
      LogicalPlan node, Rows rows, List leaves, Map aliases, List keys) {
    for (int i = 0; i < node.children().size(); i++) {
      noteColumns((LogicalPlan) node.children().apply(i), rows, leaves, aliases, keys);
    }
    if (node instanceof LogicalRDD && ((LogicalRDD) node).rdd() == rows) {
      leaves.add(node);
    } else if (node instanceof Project) {
      noteAliases(((Project) node).projectList(), aliases);
    } else if (node instanceof Aggregate) {
      noteKeys(((Aggregate) node).groupingExpressions(), keys);
      noteAliases(((Aggregate) node).aggregateExpressions(), aliases);
    } else if (node instanceof Window) {
      noteKeys(((Window) node).partitionSpec(), keys);
    }
  }

  private static void noteAliases(Seq expressions, Map aliases) {
    for (int i = 0; i < expressions.size(); i++) {
      Object one = expressions.apply(i);
      if (one instanceof Alias && ((Alias) one).child() instanceof Attribute) {
        aliases.put(((Alias) one).exprId(), ((Attribute) ((Alias) one).child()).exprId());
      }
    }
  }

  private static void noteKeys(Seq expressions, List keys) {
    for (int i = 0; i < expressions.size(); i++) {
      if (expressions.apply(i) instanceof Attribute) {
        keys.add(((Attribute) expressions.apply(i)).exprId());
      }
    }
  }

  /** Why a query cannot be kept, whatever its physical plan is; null if it can. */
  private static String refusal(LogicalPlan analysed) {
    if (analysed.containsPattern(TreePattern$.MODULE$.CURRENT_LIKE())) {
      return "the time of the query"; // a constant of the plan
    } else if (analysed.containsPattern(TreePattern$.MODULE$.SCALA_UDF())) {
      return "a function of somebody else"; // which may block, and only a task can be killed
    }
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

  /**
   * Rows of this process, in one partition or in pieces. They are computed in the driver only, as
   * often as a plan reads them, one at a time: as those of any scan they are copied by what keeps
   * them.
   */
  private static class Rows extends RDD {
    private final long number = NUMBERS.incrementAndGet();
    private final StructType schema;
    private final int pieces;

    Rows(SparkSession session, StructType schema, int pieces) {
      super(session.sparkContext(), seq(new ArrayList()), ClassTag$.MODULE$.apply(InternalRow.class));
      this.schema = schema;
      this.pieces = pieces;
    }

    /** Take the rows of a run: one file of this prefix for each piece, from a number on. */
    void take(String prefix, int from) {
      String[] files = new String[pieces];
      for (int i = 0; i < pieces; i++) {
        files[i] = prefix + (from + i);
      }
      FILES.put(Long.valueOf(number), files);
    }

    void forget() {
      FILES.remove(Long.valueOf(number));
    }

    /** The rows of a file with a stream of Arrow; a copy of this finds it as well. */
    public Iterator compute(Partition split, TaskContext context) {
      String file = ((String[]) FILES.get(Long.valueOf(number)))[split.index()];
      try {
        final FileChannel channel = FileChannel.open(Paths.get(file), new OpenOption[0]);
        context.addTaskCompletionListener(new TaskCompletionListener() {
          public void onTaskCompletion(TaskContext ended) {
            try {
              channel.close();
            } catch (IOException e) {
              Platform.throwException(e);
            }
          }
        });
        Iterator rows = ArrowConverters$.MODULE$.fromBatchIterator(
            ArrowConverters$.MODULE$.getBatchesFromStream(channel), schema, "UTC", false, false,
            context);
        final UnsafeProjection projection = UnsafeProjection$.MODULE$.create(schema);
        // Not as they are: generated code looks at an element of an array before it asks if it is
        // null, which Arrow does not let it.
        return rows.map(new AbstractFunction1() {
          public Object apply(Object row) {
            return projection.apply((InternalRow) row);
          }
        });
      } catch (IOException e) {
        Platform.throwException(e);
        return null;
      }
    }

    public Partition[] getPartitions() {
      Partition[] found = new Partition[pieces];
      for (int i = 0; i < pieces; i++) {
        found[i] = new OnePartition(i);
      }
      return found;
    }
  }

  private static class OnePartition implements Partition {
    private final int index;

    OnePartition(int index) {
      this.index = index;
    }

    public int index() {
      return index;
    }

    public boolean org$apache$spark$Partition$$super$equals(Object other) {
      return super.equals(other);
    }
  }

  /** What one thread computes: a partition of a plan, and copies of the plan's counters. */
  private static class Piece {
    private final RDD result;
    private final Partition partition;
    private final Seq counters;

    Piece(RDD result, Partition partition, Seq counters) {
      this.result = result;
      this.partition = partition;
      this.counters = counters;
    }

    /**
     * A piece with copies of all that it runs, made as for a task. What an RDD depends on must have
     * been asked for before (`hasShuffle`): a copy does not know how to find out.
     */
    static Piece copyOf(RDD result, Partition partition) {
      SerializerInstance serializer =
          ((Serializer) environment("closureSerializer", Serializer.class)).newInstance();
      ByteBuffer written =
          serializer.serialize(new Tuple2(result, partition), ClassTag$.MODULE$.Any());
      TaskContextImpl task = task(partition.index(), new Properties());
      // Counters that are read in a task are registered with it.
      TaskContext$.MODULE$.setTaskContext(task);
      try {
        Tuple2 copy = (Tuple2) serializer.deserialize(
            written, KeptJobs.class.getClassLoader(), ClassTag$.MODULE$.Any());
        return new Piece(
            (RDD) copy._1(), (Partition) copy._2(), task.taskMetrics()._externalAccums().toSeq());
      } finally {
        TaskContext$.MODULE$.unset();
      }
    }

    /** The partition, computed as a task does. */
    byte[] computed(StructType schema, Properties properties) {
      TaskContextImpl task = task(partition.index(), properties);
      Option error = None$.MODULE$;
      TaskContext$.MODULE$.setTaskContext(task);
      try {
        Iterator rows = result.iterator(partition, task);
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
          task.taskMemoryManager().cleanUpAllAllocatedMemory();
          TaskContext$.MODULE$.unset();
        }
      }
    }

    private static TaskContextImpl task(int partition, Properties properties) {
      long number = TASKS.decrementAndGet();
      TaskMemoryManager memory = new TaskMemoryManager(
          (MemoryManager) environment("memoryManager", MemoryManager.class), number);
      return new TaskContextImpl(0, 0, partition, number, 0, 1, memory, properties,
          (MetricsSystem) environment("metricsSystem", MetricsSystem.class), new TaskMetrics(),
          scala.package$.MODULE$.BigDecimal().apply(1), Map$.MODULE$.empty());
    }
  }

  /** Calls all, the first one in this thread; when all have ended, the first error is thrown. */
  private static Object[] together(List calls) throws Exception {
    Future[] others = new Future[calls.size()];
    for (int i = 1; i < others.length; i++) {
      others[i] = THREADS.submit((Callable) calls.get(i));
    }
    Object[] results = new Object[calls.size()];
    Throwable error = null;
    try {
      results[0] = ((Callable) calls.get(0)).call();
    } catch (Throwable e) {
      error = e;
    }
    for (int i = 1; i < others.length; i++) {
      try {
        results[i] = others[i].get();
      } catch (ExecutionException e) {
        error = error == null ? e.getCause() : error;
      }
    }
    if (error != null) {
      Platform.throwException(error);
    }
    return results;
  }

  /** A kept plan. Used by one thread at a time. */
  public static class Job {
    private final long number = NUMBERS.incrementAndGet();
    private final SparkSession session;
    private final SparkPlan plan;
    private final Map metrics = new HashMap();
    private final Rows[] leaves;
    private final StructType schema;
    private final int column;
    private final List parts = new ArrayList();

    Job(SparkSession session, SparkPlan plan, RDD result, Rows[] leaves, StructType schema,
        int column) {
      this.session = session;
      this.plan = plan;
      this.leaves = leaves;
      this.schema = schema;
      this.column = column;
      Partition[] partitions = result.partitions();
      parts.add(new Piece(result, partitions[0], seq(new ArrayList())));
      for (int i = 1; i < partitions.length; i++) {
        parts.add(Piece.copyOf(result, partitions[i]));
      }
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

    /** Number of the column of the leaf that tells to which piece a row belongs. */
    public int pieceColumn() {
      return column;
    }

    /** The plan, as text. */
    public String toString() {
      return plan.toString();
    }

    /**
     * Writes the rows of the plan to a file, over those of other files, one per leaf and piece: all
     * of them streams of Arrow (`row_files`), of the result one for each partition. Returns how many
     * bytes it has written. Where `isTold` is false nothing is counted: somebody else counts the
     * same rows. Where `isInterpreted`, what operators make for themselves in each run is
     * interpreted, and no code is generated for it.
     */
    public int run(String prefix, boolean isTold, final boolean isInterpreted) throws Exception {
      resetCounters();
      try {
        int taken = 0;
        for (int i = 0; i < leaves.length; i++) {
          leaves[i].take(prefix, taken);
          taken += leaves[i].pieces;
        }
        // As for an execution of Spark's: expressions look for the settings of the session among the
        // properties of the task.
        Object[] rows = (Object[]) SQLExecution$.MODULE$.withSQLConfPropagated(
            session, new AbstractFunction0() {
              public Object apply() {
                return isInterpreted ? interpreted() : computed();
              }
            });
        count();
        if (isTold) {
          tell();
        }
        // Over what is there: to cut a file off and let it grow again costs more than to write it.
        FileChannel file = FileChannel.open(
            Paths.get(prefix + "result"), new OpenOption[] {StandardOpenOption.WRITE});
        try {
          for (int i = 0; i < rows.length; i++) {
            ByteBuffer written = ByteBuffer.wrap((byte[]) rows[i]);
            while (written.hasRemaining()) {
              file.write(written);
            }
          }
          return (int) file.position();
        } finally {
          file.close();
        }
      } finally {
        for (int i = 0; i < leaves.length; i++) {
          leaves[i].forget();
        }
      }
    }

    /**
     * All partitions, without code that is generated for this run. An aggregate and a sort each
     * make projections and orderings in each task. Their classes are cached, but by their source,
     * which is written anew: 1 of 1.5 ms for a join and an aggregate of one row.
     */
    private Object[] interpreted() {
      SparkContext context = session.sparkContext();
      String before = context.getLocalProperty(FACTORY_MODE);
      context.setLocalProperty(FACTORY_MODE, "NO_CODEGEN");
      try {
        return computed();
      } finally {
        context.setLocalProperty(FACTORY_MODE, before);
      }
    }

    /** All partitions, each by a thread. */
    private Object[] computed() {
      // Settings of the session are among these properties: expressions look for them there.
      Properties properties = session.sparkContext().getLocalProperties();
      List calls = new ArrayList();
      for (int i = 0; i < parts.size(); i++) {
        calls.add(computing((Piece) parts.get(i), properties));
      }
      try {
        return together(calls);
      } catch (Exception e) {
        Platform.throwException(e);
        return null;
      }
    }

    private Callable computing(final Piece piece, final Properties properties) {
      return new Callable() {
        public Object call() {
          return piece.computed(schema, properties);
        }
      };
    }

    private void resetCounters() {
      plan.resetMetrics();
      for (int i = 1; i < parts.size(); i++) {
        Seq counters = ((Piece) parts.get(i)).counters;
        for (int k = 0; k < counters.size(); k++) {
          ((AccumulatorV2) counters.apply(k)).reset();
        }
      }
    }

    /** Adds what copies of the counters have counted. */
    private void count() {
      for (int i = 1; i < parts.size(); i++) {
        Seq counters = ((Piece) parts.get(i)).counters;
        for (int k = 0; k < counters.size(); k++) {
          AccumulatorV2 counted = (AccumulatorV2) counters.apply(k);
          AccumulatorV2 sum = (AccumulatorV2) metrics.get(Long.valueOf(counted.id()));
          if (sum != null) {
            sum.merge(counted);
          }
        }
      }
    }

    /** Notes what the operators have counted. */
    private void tell() {
      Map counts = new HashMap();
      java.util.Iterator counters = metrics.values().iterator();
      while (counters.hasNext()) {
        SQLMetric metric = (SQLMetric) counters.next();
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

    private static void collect(SparkPlan node, Map counted) {
      Iterator metrics = node.metrics().valuesIterator();
      while (metrics.hasNext()) {
        SQLMetric metric = (SQLMetric) metrics.next();
        counted.put(Long.valueOf(metric.id()), metric);
      }
      Seq children = node.children();
      for (int i = 0; i < children.size(); i++) {
        collect((SparkPlan) children.apply(i), counted);
      }
    }
  }
}
