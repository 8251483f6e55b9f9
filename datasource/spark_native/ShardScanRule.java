package shardline_jvm;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.ref.Cleaner;
import java.lang.ref.WeakReference;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.WeakHashMap;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.QueryPlanningTracker$;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.CollapseProject$;
import org.apache.spark.sql.catalyst.optimizer.ColumnPruning$;
import org.apache.spark.sql.catalyst.optimizer.PushPredicateThroughNonJoin$;
import org.apache.spark.sql.catalyst.optimizer.PushProjectionThroughUnion$;
import org.apache.spark.sql.catalyst.optimizer.RemoveNoopOperators$;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Generate;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint$;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.rules.RuleExecutor;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.trees.TreePattern;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.SparkDataStream;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonStreamingInputPartition;
import org.apache.spark.sql.internal.connector.SupportsMetadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import scala.None$;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;

/**
 * Puts a native plan in the place of each scan of format("shard"), under the same expression ids.
 * Compiled by Spark's own Janino when the first scan is there (ShardRuleLoader.java, which passes
 * plans on), so in raw types and without lambdas.
 *
 * <p>The planner is a Python object. Of batch reads it is asked once for each load(): all queries
 * over one loaded frame see one plan, in whichever session, and a load that was left to the Python
 * workers once is left to them for good. Of a stream it is asked once for each range, whose partitions the stream has
 * planned.
 *
 * <p>No exception of its own leaves it: a query that could not be planned natively keeps its own
 * plan. Three do leave it: that of a stream that plans its range, since the process that has raised
 * it is gone, and asking it again would hide what was wrong; Ctrl-C; and that of a table whose plan
 * by Python workers would be of another shard (`leaveToWorkers`).
 */
public class ShardScanRule extends Rule {
  private static final String PYTHON_TABLE =
      "org.apache.spark.sql.execution.datasources.v2.python.PythonTable";
  private static final String SETTING = "spark.shardline.nativeReads";
  private static final String EMPTY = "the range is empty"; // EMPTY of load_plans.py
  private static final int ROUNDS = 20;
  private static final String OTHER_OPTIONS =
      "[TABLE_WITH_OTHER_OPTIONS] a query reads one table by two sets of options, which differ in ";
  private static final String OTHER_OPTIONS_END =
      ", and Spark would read all of it by the first \u2014 hint: give all uses the same options, or"
          + " make a table for each set of them, or use load() or a temporary view";

  // Of all sessions, each of which has a rule of its own: they share tables, by global temporary
  // views and by frames that are used in another session.
  private static final Map loads = new HashMap();
  private static final Map optionsOfSources = new WeakHashMap();
  private static final Cleaner cleaner = Cleaner.create();
  private static final ObjectMapper JSON = new ObjectMapper();

  private final Function planner;
  private final Map ranges = new WeakHashMap();
  private final Map queries = new WeakHashMap();
  private final Map counts = new TreeMap();
  private final Field sourceOfTable;
  private final Field planOfSource;

  public ShardScanRule(Function planner) throws Exception {
    this.planner = planner;
    ClassLoader loader = Thread.currentThread().getContextClassLoader();
    this.sourceOfTable = Class.forName(PYTHON_TABLE, true, loader).getDeclaredField("ds");
    this.planOfSource = sourceOfTable.getType().getDeclaredField("readInfo");
    sourceOfTable.setAccessible(true);
    planOfSource.setAccessible(true);
  }

  public TreeNode apply(TreeNode plan) {
    try {
      LogicalPlan given = (LogicalPlan) plan;
      boolean[] anyNative = {false};
      LogicalPlan swapped = swap(given, anyNative);
      return anyNative[0] ? simplify(swapped) : swapped;
    } catch (NotLeft e) {
      Platform.throwException(e.getCause());
    } catch (Exception e) {
      fail(e);
    } catch (LinkageError e) {
      fail(e);
    }
    return plan;
  }

  /** How many leaves were planned natively or left, by what became of them. */
  public Map counts() {
    synchronized (counts) {
      return new TreeMap(counts);
    }
  }

  /** The number of loads whose plan is remembered, in all sessions. */
  public int remembered() {
    synchronized (loads) {
      return loads.size();
    }
  }

  /** True if a plan can be put in the place of another; asked when the rule is installed. */
  public boolean selfTest(Dataset frame, Dataset other) {
    Seq wanted = other.queryExecution().optimizedPlan().output();
    LogicalPlan made = simplify(project(copy(frame), wanted));
    return fits(made.output(), wanted)
        && ((Attribute) made.output().head()).exprId().equals(((Attribute) wanted.head()).exprId());
  }

  /** The plan with its scans replaced; notes if a native plan has taken the place of one. */
  private LogicalPlan swap(LogicalPlan plan, boolean[] anyNative) throws Exception {
    if (plan instanceof DataSourceV2ScanRelation) {
      LogicalPlan made = replacement((DataSourceV2ScanRelation) plan);
      anyNative[0] = anyNative[0] || !(made instanceof DataSourceV2ScanRelation);
      return made;
    }
    if (plan instanceof StreamingDataSourceV2ScanRelation) {
      LogicalPlan made = replacement((StreamingDataSourceV2ScanRelation) plan);
      anyNative[0] = anyNative[0] || !(made instanceof StreamingDataSourceV2ScanRelation);
      return made;
    }
    Seq children = plan.children();
    List made = new ArrayList();
    boolean changed = false;
    for (int i = 0; i < children.size(); i++) {
      LogicalPlan child = (LogicalPlan) children.apply(i);
      LogicalPlan swapped = swap(child, anyNative);
      changed = changed || swapped != child;
      made.add(swapped);
    }
    LogicalPlan found =
        changed ? (LogicalPlan) ((TreeNode) plan).withNewChildren(seq(made)) : plan;
    return withSubqueries(found);
  }

  /**
   * An operator with the scans replaced in subqueries of its expressions. Those of the query have
   * been optimized by themselves, and are as they are to be. The ones that Spark adds for filters at
   * run time (dynamic partition pruning, bloom filters) come later, and no optimizer sees them
   * again: by a scan of another time they would leave out rows that match.
   */
  private LogicalPlan withSubqueries(LogicalPlan plan) throws Exception {
    Seq expressions = plan.expressions();
    boolean any = false;
    for (int i = 0; i < expressions.size(); i++) {
      any = any || hasPlan((Expression) expressions.apply(i));
    }
    if (!any) {
      return plan;
    }
    final ShardScanRule rule = this;
    return (LogicalPlan) plan.mapExpressions(new AbstractFunction1() {
      public Object apply(Object expression) {
        try {
          return rule.withSubqueries((Expression) expression);
        } catch (Exception e) {
          Platform.throwException(e);
          return expression;
        }
      }
    });
  }

  /** An expression with the scans replaced in its subqueries. */
  Expression withSubqueries(Expression expression) throws Exception {
    if (!hasPlan(expression)) {
      return expression;
    }
    Seq children = expression.children();
    List made = new ArrayList();
    boolean changed = false;
    for (int i = 0; i < children.size(); i++) {
      Expression child = (Expression) children.apply(i);
      Expression swapped = withSubqueries(child);
      changed = changed || swapped != child;
      made.add(swapped);
    }
    Expression found =
        changed ? (Expression) ((TreeNode) expression).withNewChildren(seq(made)) : expression;
    if (!(found instanceof SubqueryExpression)) {
      return found;
    }
    LogicalPlan given = (LogicalPlan) ((SubqueryExpression) found).plan();
    boolean[] anyNative = {false};
    LogicalPlan plan = swap(given, anyNative);
    if (plan == given) {
      return found;
    }
    return ((SubqueryExpression) found).withNewPlan(anyNative[0] ? simplify(plan) : plan);
  }

  private static boolean hasPlan(Expression expression) {
    return expression.containsPattern(TreePattern.PLAN_EXPRESSION());
  }

  private LogicalPlan replacement(DataSourceV2ScanRelation leaf) throws Exception {
    Table table = leaf.relation().table();
    if (!isOurs(table)) {
      return leaf;
    }
    if (isSpared(leaf.relation().options())) {
      leaveToWorkers(table, leaf.relation().options());
      return explained(leaf, "option nativeReads", sourceOfTable.get(table));
    }
    Load load = loadOf(table, leaf);
    if (load.frame == null) {
      leaveToWorkers(table, leaf.relation().options());
      return explained(leaf, load.reason, sourceOfTable.get(table));
    }
    LogicalPlan swapped = project(load.plan(), leaf.output());
    count("native");
    return swapped;
  }

  private LogicalPlan replacement(StreamingDataSourceV2ScanRelation leaf) throws Exception {
    Table table = leaf.relation().table();
    if (!isOurs(table) || leaf.startOffset().isEmpty() || leaf.endOffset().isEmpty()) {
      return leaf; // a stream that does not run yet
    }
    leaveToWorkers(table, leaf.relation().options()); // whose range is planned there in any case
    if (isSpared(leaf.relation().options())) {
      return explained(leaf, "option nativeReads");
    }
    Load load = rangeOf(table, leaf);
    if (load.frame == null) {
      return explained(leaf, load.reason);
    }
    LogicalPlan plan = asStream(load.plan(), leaf.stream());
    if (plan == null || !plan.isStreaming()) {
      String reason = "the native plan is not one of a stream";
      leave(reason, true);
      return explained(leaf, reason);
    }
    LogicalPlan swapped = project(plan, leaf.output());
    count("native");
    return swapped;
  }

  /**
   * Notes that Spark's Python workers read the table by these options. A query has one table for all
   * uses of a name, whatever the options of each, and Spark makes one Python source of it, by those
   * that come first: rows of the first shard would take the place of others without an error.
   */
  private void leaveToWorkers(Table table, Map options) throws Exception {
    Object source = sourceOfTable.get(table);
    synchronized (optionsOfSources) {
      Object first = optionsOfSources.get(source);
      if (first == null) {
        optionsOfSources.put(source, options);
      } else if (!first.equals(options)) {
        String names = differing((Map) first, options);
        throw new NotLeft(new IllegalArgumentException(OTHER_OPTIONS + names + OTHER_OPTIONS_END));
      }
    }
  }

  /** The names of options, in small letters, that are not the same in both; values may be secret. */
  private static String differing(Map first, Map second) {
    TreeSet names = new TreeSet(first.keySet());
    names.addAll(second.keySet());
    StringBuilder differing = new StringBuilder();
    for (Object name : names) {
      if (!Objects.equals(first.get(name), second.get(name))) {
        differing.append(differing.length() == 0 ? "" : ", ").append(name);
      }
    }
    return differing.toString();
  }

  /** The leaf, with the reason in what `explain()` shows of it. */
  private static LogicalPlan explained(
      DataSourceV2ScanRelation leaf, String reason, Object source) {
    if (leaf.scan() instanceof LeftScan) {
      return leaf;
    }
    return leaf.copy(
        leaf.relation(), new LeftScan(leaf.scan(), reason, source), leaf.output(),
        leaf.keyGroupedPartitioning(), leaf.ordering(), leaf.pushedFilters(),
        leaf.mergeableScan());
  }

  /** The same of a stream's micro-batch. */
  private static LogicalPlan explained(StreamingDataSourceV2ScanRelation leaf, String reason) {
    if (leaf.scan() instanceof LeftScan) {
      return leaf;
    }
    return leaf.copy(
        leaf.relation(), new LeftScan(leaf.scan(), reason, null), leaf.output(), leaf.stream(),
        leaf.startOffset(), leaf.endOffset());
  }

  private static boolean isOurs(Table table) {
    return table.getClass().getName().equals(PYTHON_TABLE)
        && table.name().equalsIgnoreCase("shard");
  }

  /** True if option `nativeReads` leaves the read to the Python workers. */
  private static boolean isSpared(Map options) {
    return "false".equalsIgnoreCase((String) options.get("nativeReads")); // keys in any case
  }

  private Load loadOf(Table table, DataSourceV2ScanRelation leaf) throws Exception {
    Key key = new Key(table, leaf.relation().options());
    synchronized (loads) {
      Load known = (Load) loads.get(key);
      if (known != null) {
        return known;
      }
    }
    Map request = requestOf(table, leaf.relation().options().asCaseSensitiveMap());
    request.put("times", timesOfQuery());
    if (planOfSource.get(sourceOfTable.get(table)) != null) {
      request.put("reason", "run before"); // Spark keeps the Python workers' plan with the load
    }
    // Not inside of the lock: the planner asks the store, and waits for times that are not settled.
    Dataset made = ask(request, leaf.output());
    Load load = new Load(made, (String) request.get("reason"));
    if (request.get("interrupted") != null) {
      return load; // this query ends; the next one may ask again
    }
    synchronized (loads) {
      Load known = (Load) loads.get(key);
      if (known != null) {
        return known; // another thread was first: one load has one plan
      }
      loads.put(key, load);
    }
    cleaner.register(table, new Forget(key));
    return load;
  }

  /** The plan of a stream's range: one, however often the micro-batch is optimized. */
  private Load rangeOf(Table table, StreamingDataSourceV2ScanRelation leaf) {
    MicroBatchStream stream = (MicroBatchStream) leaf.stream();
    Offset start = (Offset) leaf.startOffset().get();
    Offset end = (Offset) leaf.endOffset().get();
    Range known;
    synchronized (ranges) {
      known = (Range) ranges.get(stream);
      if (known != null && known.start.equals(start.json()) && known.end.equals(end.json())) {
        return known.load;
      }
    }
    Map request = requestOf(table, leaf.relation().options().asCaseSensitiveMap());
    Load load = new Load(null, "turned off");
    if (!isOff((SparkSession) request.get("session"))) {
      request.put("partitions", pickled(stream, start, end));
      request.put("first", Boolean.valueOf(known == null || known.isEmpty()));
      Dataset made = ask(request, leaf.output());
      load = new Load(made, (String) request.get("reason"));
    } else {
      leave("turned off", false);
    }
    synchronized (ranges) {
      ranges.put(stream, new Range(start.json(), end.json(), load));
    }
    return load;
  }

  private static boolean isOff(SparkSession session) {
    return session.conf().get(SETTING, "true").equals("false");
  }

  /** The partitions of a range, planned by the stream as it would for the Python workers. */
  private static Object[] pickled(MicroBatchStream stream, Offset start, Offset end) {
    InputPartition[] planned;
    try {
      planned = stream.planInputPartitions(start, end);
    } catch (Throwable e) {
      throw new NotLeft(e);
    }
    List found = new ArrayList();
    for (int i = 0; i < planned.length; i++) {
      found.add(((PythonStreamingInputPartition) planned[i]).pickedPartition());
    }
    return found.toArray(); // Python reads an array faster than a list
  }

  private Map requestOf(Table table, Map options) {
    Map request = new HashMap();
    request.put("options", new HashMap(options));
    request.put("schema", table.schema().json());
    request.put("session", SparkSession$.MODULE$.active());
    return request;
  }

  /** The frame that the planner makes; null if the read is left to the Python workers. */
  private Dataset ask(Map request, Seq wanted) {
    request.put("asked", text(request));
    Dataset made = (Dataset) planner.apply(request);
    if (request.get("interrupted") != null) {
      Thread.currentThread().interrupt(); // the planner's call has cleared it by its exception
    }
    if (request.get("cancelled") != null) {
      // The one kind of exception that Spark does not keep with the query, which may be run again.
      throw new NotLeft(new InterruptedException((String) request.get("cancelled")));
    }
    if (made == null) {
      count("left: " + request.get("reason"));
    } else if (!fits(ownPlan(made).output(), wanted)) {
      request.put("reason", "the native plan has other columns");
      leave((String) request.get("reason"), true);
      made = null;
    }
    return made;
  }

  /** What is asked, as one text: Python would fetch each entry of a map by a call of its own. */
  private static String text(Map request) {
    Map asked = new HashMap(request);
    asked.remove("session");
    asked.remove("partitions");
    asked.put("off", Boolean.valueOf(isOff((SparkSession) request.get("session"))));
    try {
      return JSON.writeValueAsString(asked);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }

  private void fail(Throwable e) {
    leave("failed: " + e.getClass().getSimpleName(), e.toString(), false);
  }

  private void leave(String reason, boolean planned) {
    leave(reason, reason, planned);
  }

  /** Counts a read that the rule itself leaves, planned or not, and lets the planner say so. */
  private void leave(String reason, String details, boolean planned) {
    count("left: " + reason);
    try {
      Map request = new HashMap();
      request.put("reason", reason);
      request.put("details", details);
      if (planned) {
        request.put("planned", Boolean.TRUE);
      }
      planner.apply(request);
    } catch (RuntimeException e) {
      count("failed: " + e.getClass().getSimpleName()); // no Python: the driver is shutting down
    }
  }

  /**
   * A plan of a range with the leaves of a stream, whose rows Spark counts; null if an operator
   * could keep state in a stream, or a leaf is of another kind.
   */
  private static LogicalPlan asStream(LogicalPlan plan, SparkDataStream stream) {
    if (plan instanceof LogicalRelation) {
      LogicalRelation leaf = (LogicalRelation) plan;
      return leaf.copy(
          leaf.relation(), leaf.output(), leaf.catalogTable(), true, new Some(stream));
    }
    if (plan instanceof LocalRelation) {
      LocalRelation leaf = (LocalRelation) plan;
      return leaf.copy(leaf.output(), leaf.data(), true, new Some(stream));
    }
    if (!(plan instanceof Project || plan instanceof Filter || plan instanceof Union
        || plan instanceof Generate)) {
      return null;
    }
    List made = new ArrayList();
    Seq children = plan.children();
    for (int i = 0; i < children.size(); i++) {
      LogicalPlan child = asStream((LogicalPlan) children.apply(i), stream);
      if (child == null) {
        return null;
      }
      made.add(child);
    }
    return (LogicalPlan) ((TreeNode) plan).withNewChildren(seq(made));
  }

  /** The times that leaves of the query under way are read at, by location and shard. */
  private Map timesOfQuery() {
    Option tracker = QueryPlanningTracker$.MODULE$.get();
    if (tracker.isEmpty()) {
      return new HashMap();
    }
    synchronized (queries) {
      Map times = (Map) queries.get(tracker.get());
      if (times == null) {
        times = new HashMap();
        queries.put(tracker.get(), times);
      }
      return times;
    }
  }

  private void count(String outcome) {
    synchronized (counts) {
      Object before = counts.get(outcome);
      counts.put(outcome, before == null ? Long.valueOf(1) : Long.valueOf(((Long) before) + 1));
    }
  }

  /**
   * The optimized plan of `frame` under ids that no other plan has: a frame that is joined with
   * itself would otherwise have the same ids on both sides. Spark's analyzer renews the right side
   * of a join for that very reason.
   */
  private static LogicalPlan copy(Dataset frame) {
    SparkSession session = (SparkSession) frame.sparkSession();
    LogicalPlan own = frame.queryExecution().analyzed();
    Join both =
        new Join(own, own, (org.apache.spark.sql.catalyst.plans.JoinType) Inner$.MODULE$,
            (Option) None$.MODULE$, JoinHint$.MODULE$.NONE());
    RuleExecutor analyzer = (RuleExecutor) session.sessionState().analyzer();
    LogicalPlan renewed = (LogicalPlan) analyzer.execute((TreeNode) both);
    LogicalPlan right = (LogicalPlan) renewed.children().apply(1);
    return Dataset$.MODULE$.ofRows(session, right).queryExecution().optimizedPlan();
  }

  /** The optimized plan of `frame`; of a bare scan its own, which no rule would change. */
  private static LogicalPlan ownPlan(Dataset frame) {
    LogicalPlan plan = frame.queryExecution().analyzed();
    return plan instanceof LogicalRelation ? plan : frame.queryExecution().optimizedPlan();
  }

  private static boolean fits(Seq found, Seq wanted) {
    boolean fits = found.size() == wanted.size();
    for (int i = 0; fits && i < found.size(); i++) {
      Attribute own = (Attribute) found.apply(i);
      Attribute leaf = (Attribute) wanted.apply(i);
      fits =
          own.name().equals(leaf.name())
              && own.dataType().equals(leaf.dataType())
              && (leaf.nullable() || !own.nullable());
    }
    return fits;
  }

  private static LogicalPlan project(LogicalPlan plan, Seq wanted) {
    Seq found = plan.output();
    List columns = new ArrayList();
    for (int i = 0; i < found.size(); i++) {
      Attribute own = (Attribute) found.apply(i);
      Attribute leaf = (Attribute) wanted.apply(i);
      columns.add(
          new Alias(
              own, leaf.name(), leaf.exprId(), leaf.qualifier(), new Some(leaf.metadata()),
              seq(new ArrayList())));
    }
    return new Project(seq(columns), plan);
  }

  /**
   * Columns and filters pushed into the native plans. User's rules run after all of Spark's own, so
   * these would not be applied again; Spark itself repeats them where it puts leaves in so late.
   */
  private static LogicalPlan simplify(LogicalPlan plan) {
    Object[] rules = {
      PushProjectionThroughUnion$.MODULE$,
      PushPredicateThroughNonJoin$.MODULE$,
      ColumnPruning$.MODULE$,
      CollapseProject$.MODULE$,
      RemoveNoopOperators$.MODULE$,
    };
    for (int round = 0; round < ROUNDS; round++) {
      LogicalPlan before = plan;
      for (int i = 0; i < rules.length; i++) {
        plan = (LogicalPlan) ((Rule) rules[i]).apply((TreeNode) plan);
      }
      if (((TreeNode) before).fastEquals((TreeNode) plan)) {
        return plan;
      }
    }
    return plan;
  }

  private static Seq seq(List items) {
    return CollectionConverters.asScala(items).toSeq();
  }

  /** A loaded frame's native plan; null if it was left to the Python workers. */
  private static class Load {
    final Dataset frame;
    final String reason;
    private boolean used = false;

    Load(Dataset frame, String reason) {
      this.frame = frame;
      this.reason = reason;
    }

    /** The plan, each time under other ids. */
    LogicalPlan plan() {
      synchronized (this) {
        if (!used) {
          used = true;
          return ownPlan(frame);
        }
      }
      return copy(frame);
    }
  }

  /** The scan of a read that is left to the Python workers, with the reason in its text. */
  private static class LeftScan implements Scan, SupportsMetadata {
    private final Scan own;
    private final String reason;
    private final Object source;

    LeftScan(Scan own, String reason, Object source) {
      this.own = own;
      this.reason = "not native: " + reason;
      this.source = source;
    }

    public String description() {
      return own.description() + " " + reason;
    }

    public scala.collection.immutable.Map getMetaData() {
      scala.collection.immutable.Map found = ((SupportsMetadata) own).getMetaData();
      return (scala.collection.immutable.Map) found.updated("Read", reason);
    }

    public StructType readSchema() {
      return own.readSchema();
    }

    public Batch toBatch() {
      return new OncePlanned(own.toBatch(), source);
    }

    public CustomMetric[] supportedCustomMetrics() {
      return own.supportedCustomMetrics();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
      return own.reportDriverMetrics();
    }

    public Scan.ColumnarSupportMode columnarSupportMode() {
      return own.columnarSupportMode();
    }
  }

  /**
   * A batch whose Python source is planned by one thread at a time. Adaptive execution plans both
   * sides of a join at once. Spark's source looks whether it has a plan, and makes one, without a
   * lock: of one load each side would have a plan of its own, at a latest time of its own.
   */
  private static class OncePlanned implements Batch {
    private final Batch own;
    private final Object source;

    OncePlanned(Batch own, Object source) {
      this.own = own;
      this.source = source;
    }

    public InputPartition[] planInputPartitions() {
      synchronized (source) {
        return own.planInputPartitions();
      }
    }

    public PartitionReaderFactory createReaderFactory() {
      synchronized (source) {
        return own.createReaderFactory();
      }
    }
  }

  /** The range of a stream that was planned last. */
  private static class Range {
    final String start;
    final String end;
    final Load load;

    Range(String start, String end, Load load) {
      this.start = start;
      this.end = end;
      this.load = load;
    }

    /** True if it was left for that it has no part. */
    boolean isEmpty() {
      return EMPTY.equals(load.reason);
    }
  }

  /** An exception that ends the query: reading by Python workers would not help. */
  private static class NotLeft extends RuntimeException {
    NotLeft(Throwable cause) {
      super(cause);
    }
  }

  /** A table by identity, without keeping it, and the options that it is read by. */
  private static class Key extends WeakReference {
    private final Map options;
    private final int hash;

    Key(Object table, Map options) {
      super(table);
      this.options = options;
      this.hash = 31 * System.identityHashCode(table) + options.hashCode();
    }

    public int hashCode() {
      return hash;
    }

    public boolean equals(Object other) {
      if (this == other) {
        return true;
      }
      Object own = get();
      return own != null
          && other instanceof Key
          && ((Key) other).get() == own
          && ((Key) other).options.equals(options);
    }
  }

  /** Forgets a load once nothing can read it again: its plan goes, and with it its lease. */
  private static class Forget implements Runnable {
    private final Key key;

    Forget(Key key) {
      this.key = key;
    }

    public void run() {
      synchronized (loads) {
        loads.remove(key);
      }
    }
  }
}
