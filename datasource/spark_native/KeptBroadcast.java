package shardline_jvm;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BoundReference;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Statistics;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LocalTableScanExec;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.adaptive.BroadcastQueryStageExec;
import org.apache.spark.sql.execution.adaptive.LogicalQueryStage;
import org.apache.spark.sql.execution.exchange.BroadcastExchangeExec;
import org.apache.spark.sql.execution.joins.HashedRelationBroadcastMode;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Rows that Spark has broadcast once, to be looked up by their first column in many queries.
 *
 * <p>Spark broadcasts the smaller side of a join anew in each query. Adaptive execution has a plan
 * node for a side that is broadcast already (BroadcastQueryStageExec), and its planner joins with
 * such a node by hash (LogicalQueryStageStrategy). The frames here are such nodes, so a query that
 * joins with one of them runs no job for it.
 *
 * <p>Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class KeptBroadcast {
  private final Broadcast rows;
  private final Statistics size;
  private final Seq output;

  /** Runs the frame, whose first column is a long that is never null, and broadcasts its rows. */
  public KeptBroadcast(Dataset frame) {
    QueryExecution query = frame.queryExecution();
    BroadcastExchangeExec sent = new BroadcastExchangeExec(byFirst(), query.executedPlan());
    rows = sent.executeBroadcast();
    size = sent.runtimeStatistics();
    output = query.optimizedPlan().output();
  }

  /** The rows as a frame of a session. It can be the right side of a join, and nothing else. */
  public Dataset frame(SparkSession session) {
    List columns = new ArrayList();
    for (Object column : CollectionConverters.asJava(output)) {
      columns.add(((Attribute) column).newInstance());
    }
    Seq named = CollectionConverters.asScala(columns).toList();
    // Spark computes equal plans once, and two of these nodes are equal if nothing in them tells
    // their rows apart. So each has a row with the number of its broadcast, which nobody reads.
    Object[] values = new Object[columns.size()];
    values[0] = Long.valueOf(rows.id());
    List numbered = Collections.singletonList(new GenericInternalRow(values));
    Seq number = CollectionConverters.asScala(numbered).toList();
    LogicalPlan logical = new LocalRelation(named, number, false, Option.empty());
    SparkPlan scanned = new LocalTableScanExec(named, number, Option.empty(), false);
    BroadcastExchangeExec sent = new BroadcastExchangeExec(byFirst(), scanned);
    Stage stage = new Stage(0, sent, (SparkPlan) sent.canonicalized(), rows, size);
    // Planning would set it, in a map that is not safe for threads that plan the same frame.
    stage.setLogicalLink(logical);
    return Dataset.ofRows(session, new LogicalQueryStage(logical, stage));
  }

  private static HashedRelationBroadcastMode byFirst() {
    List key = Collections.singletonList(new BoundReference(0, DataTypes.LongType, false));
    return new HashedRelationBroadcastMode(CollectionConverters.asScala(key).toList(), false);
  }

  /** What is broadcast, as a plan has it. */
  public static class Stage extends BroadcastQueryStageExec {
    private final transient Broadcast rows;
    private final transient Statistics size;

    /** Spark makes copies by it: first what the node is of, then what `otherCopyArgs` gives. */
    public Stage(int id, SparkPlan sent, SparkPlan canonical, Broadcast rows, Statistics size) {
      super(id, sent, canonical);
      this.rows = rows;
      this.size = size;
      // Adaptive execution waits for the end of a stage that has no result.
      resultOption().set(new Some(rows));
    }

    public Seq otherCopyArgs() {
      List given = new ArrayList();
      given.add(rows);
      given.add(size);
      return CollectionConverters.asScala(given).toList();
    }

    public String nodeName() {
      return "KeptBroadcast";
    }

    public Broadcast doExecuteBroadcast() {
      return rows;
    }

    public Statistics getRuntimeStatistics() {
      return size;
    }

    /** Called when a query ends by an error; there is no job here. */
    public void doCancel(String reason) {}

    /** Executors do not know this class. Tasks are sent it where no code is generated for them. */
    protected Object writeReplace() {
      return new BroadcastQueryStageExec(id(), plan(), _canonicalized());
    }
  }
}
