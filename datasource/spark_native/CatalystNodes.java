package shardline_jvm;

import java.util.ArrayList;
import java.util.List;
import java.util.StringTokenizer;
import java.util.TreeSet;
import org.apache.spark.api.python.PythonUtils;
import org.apache.spark.sql.catalyst.expressions.AttributeSet;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.types.StructType;
import py4j.Gateway;

/**
 * Answers questions about Spark's plans and expressions in one call each (catalyst_nodes.py).
 *
 * <p>Compiled by Spark's own Janino, which knows no generics.
 */
public final class CatalystNodes {
  private final Gateway gateway;

  /** Objects are handed out through the gateway by which Python calls. */
  public CatalystNodes(Object gateway) {
    this.gateway = (Gateway) gateway;
  }

  /** The name of the class of an operator or expression, or of any other object of Spark's. */
  public String kind(Object node) {
    return node.getClass().getSimpleName();
  }

  /** The number by which Spark knows a column. */
  public long number(Object column) {
    return ((NamedExpression) column).exprId().id();
  }

  /** The numbers of the columns in a sequence, in its order. */
  public String numbers(Object columns) {
    StringBuilder numbers = new StringBuilder();
    scala.collection.Iterator items = ((scala.collection.Iterable) columns).iterator();
    while (items.hasNext()) {
      numbers.append(number(items.next())).append(' ');
    }
    return numbers.toString();
  }

  /** The numbers of the columns that an operator or expression refers to, each once. */
  public String read(Object node) {
    AttributeSet columns =
        node instanceof Expression
            ? ((Expression) node).references()
            : ((LogicalPlan) node).references();
    return numbers(columns.toSeq());
  }

  /** The type of an expression, as JSON of a row with a column `c` of it. */
  public String type(Object expression) {
    return new StructType().add("c", ((Expression) expression).dataType()).json();
  }

  /** True for an operator, false for an expression. */
  public boolean isPlan(Object node) {
    return node instanceof LogicalPlan;
  }

  /** The names of the classes of a plan's operators, each once, without those in subqueries. */
  public String kinds(Object plan) {
    TreeSet found = new TreeSet();
    addKinds((TreeNode) plan, found);
    return String.join(" ", found);
  }

  private void addKinds(TreeNode node, TreeSet found) {
    found.add(kind(node));
    scala.collection.Iterator children = node.children().iterator();
    while (children.hasNext()) {
      addKinds((TreeNode) children.next(), found);
    }
  }

  /** True if each operator is resolved, and has below it what it refers to. */
  public boolean isWhole(Object plan) {
    LogicalPlan operator = (LogicalPlan) plan;
    if (!operator.resolved() || !operator.missingInput().isEmpty()) {
      return false;
    }
    scala.collection.Iterator children = operator.children().iterator();
    while (children.hasNext()) {
      if (!isWhole(children.next())) {
        return false;
      }
    }
    return true;
  }

  /** What `elements` says of a node's children. */
  public String children(Object node) {
    return elements(((TreeNode) node).children());
  }

  /**
   * The nodes in a sequence: for each the name by which Python knows it, and its kind; of a column
   * its number, too. Null if not all in it are nodes.
   */
  public String elements(Object sequence) {
    StringBuilder names = new StringBuilder();
    scala.collection.Iterator items = ((scala.collection.Iterable) sequence).iterator();
    while (items.hasNext()) {
      // A name keeps its object until Python gives it up, so none is made that Python is not given.
      if (!(items.next() instanceof TreeNode)) {
        return null;
      }
    }
    items = ((scala.collection.Iterable) sequence).iterator();
    while (items.hasNext()) {
      Object item = items.next();
      names.append(gateway.putNewObject(item)).append(':').append(kind(item));
      if (item instanceof NamedExpression && ((Expression) item).resolved()) {
        names.append(':').append(number(item));
      }
      names.append(' ');
    }
    return names.toString();
  }

  /** A sequence of the objects that Python knows by these names. */
  public Object sequence(String names) {
    List items = new ArrayList();
    StringTokenizer each = new StringTokenizer(names);
    while (each.hasMoreTokens()) {
      items.add(gateway.getObject(each.nextToken()));
    }
    return PythonUtils.toSeq(items);
  }

  /** Let go of the objects of these names, which Python has given up. */
  public void release(String names) {
    StringTokenizer each = new StringTokenizer(names);
    while (each.hasMoreTokens()) {
      gateway.deleteObject(each.nextToken());
    }
  }
}
