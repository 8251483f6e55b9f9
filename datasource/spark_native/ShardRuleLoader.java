package shardline_jvm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.plans.logical.AppendData;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.V2WriteCommand;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.StreamingDataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.WriteToDataSourceV2;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Stands where ShardScanRule will, until the first query that has a scan of format("shard"), and
 * where ShardWriteRule will, until the first append to one.
 *
 * <p>Every session of a driver that imports Shardline has one, so it is small: what it costs a
 * session without shards is its class and a look at each plan's root and leaves. Python makes a
 * rule when the first scan or append is there (rule_loader.py), and the loader passes every plan on
 * to it from then on. Streams and other clones of the session share the loader, and so its rules.
 */
public class ShardRuleLoader extends Rule {
  private static final String PYTHON_TABLE =
      "org.apache.spark.sql.execution.datasources.v2.python.PythonTable";

  private final LazyRule reads;
  private final LazyRule writes;

  public ShardRuleLoader(Function readMaker, Function writeMaker) {
    this.reads = new Reads(readMaker);
    this.writes = new Writes(writeMaker);
  }

  public TreeNode apply(TreeNode plan) {
    // The append first: its frame is planned by itself, and its reads with it. A micro-batch whose
    // reads become files is seen once more, since its plan has changed.
    return reads.applied(writes.applied(plan));
  }

  /** The rule of scans, which is made if it is not there; null if it cannot be made. */
  public Rule load() throws InterruptedException {
    return reads.load();
  }

  /** The loader of the session; it is added to it if there is none. */
  public ShardRuleLoader install(SparkSession session) {
    synchronized (session) {
      ShardRuleLoader own = loaderOf(session);
      if (own == null) {
        own = this;
        List rules = rulesOf(session);
        rules.add(own);
        put(session, rules);
      }
      return own;
    }
  }

  /** Takes all loaders away from the session. */
  public void remove(SparkSession session) {
    synchronized (session) {
      List kept = new ArrayList();
      List rules = rulesOf(session);
      for (int i = 0; i < rules.size(); i++) {
        if (!(rules.get(i) instanceof ShardRuleLoader)) {
          kept.add(rules.get(i));
        }
      }
      put(session, kept);
    }
  }

  /** The loader of the session; null if it has none. */
  public ShardRuleLoader loaderOf(SparkSession session) {
    List rules = rulesOf(session);
    for (int i = 0; i < rules.size(); i++) {
      if (rules.get(i) instanceof ShardRuleLoader) {
        return (ShardRuleLoader) rules.get(i);
      }
    }
    return null;
  }

  private static boolean isOurs(Table table) {
    return table.getClass().getName().equals(PYTHON_TABLE)
        && table.name().equalsIgnoreCase("shard");
  }

  private static List rulesOf(SparkSession session) {
    return new ArrayList(CollectionConverters.asJava(session.experimental().extraOptimizations()));
  }

  private static void put(SparkSession session, List rules) {
    session.experimental().extraOptimizations_$eq(CollectionConverters.asScala(rules).toSeq());
  }

  /** A rule that Python makes when the first plan is there that it is for. */
  private abstract static class LazyRule {
    private final Function maker;
    private volatile Rule rule;
    private volatile boolean shut = false;

    LazyRule(Function maker) {
      this.maker = maker;
    }

    /** True for a plan that the rule has to be made for. */
    abstract boolean isFor(TreeNode plan);

    /** What the rule makes of a plan: the plan itself, while there is no rule. */
    TreeNode applied(TreeNode plan) {
      Rule made = rule;
      if (made == null && !shut) {
        try {
          made = isFor(plan) ? load() : null;
        } catch (InterruptedException e) {
          Platform.throwException(e); // somebody has pressed Ctrl-C
        } catch (Exception e) {
          shut = true; // no query fails because of a rule
        } catch (LinkageError e) {
          shut = true;
        }
      }
      return made == null ? plan : (TreeNode) made.apply(plan);
    }

    /** The rule, which is made if it is not there; null if it cannot be made. */
    synchronized Rule load() throws InterruptedException {
      if (rule == null && !shut) {
        Map request = new HashMap();
        Rule made = (Rule) maker.apply(request);
        if (request.get("cancelled") != null) {
          // The one kind of exception that Spark does not keep with the query, which may be run
          // again.
          throw new InterruptedException((String) request.get("cancelled"));
        }
        if (request.get("interrupted") != null) {
          Thread.currentThread().interrupt(); // this query ends; the next one may ask again
        } else {
          rule = made;
          shut = made == null;
        }
      }
      return rule;
    }
  }

  /** ShardScanRule. */
  private static class Reads extends LazyRule {
    Reads(Function maker) {
      super(maker);
    }

    boolean isFor(TreeNode plan) {
      return hasScan((LogicalPlan) plan);
    }

    private static boolean hasScan(LogicalPlan plan) {
      if (plan instanceof DataSourceV2ScanRelation) {
        return isOurs(((DataSourceV2ScanRelation) plan).relation().table());
      }
      if (plan instanceof StreamingDataSourceV2ScanRelation) {
        return isOurs(((StreamingDataSourceV2ScanRelation) plan).relation().table());
      }
      Seq children = plan.children();
      for (int i = 0; i < children.size(); i++) {
        if (hasScan((LogicalPlan) children.apply(i))) {
          return true;
        }
      }
      return false;
    }
  }

  /** ShardWriteRule. */
  private static class Writes extends LazyRule {
    Writes(Function maker) {
      super(maker);
    }

    boolean isFor(TreeNode plan) {
      if (plan instanceof WriteToDataSourceV2) { // the micro-batch of a streaming sink
        Option sink = ((WriteToDataSourceV2) plan).relation();
        return sink.isDefined() && isOurs(((DataSourceV2Relation) sink.get()).table());
      }
      if (!(plan instanceof AppendData)) {
        return false;
      }
      NamedRelation to = ((V2WriteCommand) plan).table();
      return to instanceof DataSourceV2Relation && isOurs(((DataSourceV2Relation) to).table());
    }
  }
}
