package shardline_jvm;

import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.NamedExpression;
import org.apache.spark.sql.catalyst.expressions.NamedLambdaVariable;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Enumeration;
import scala.Product;
import scala.collection.Iterator;
import scala.collection.Seq;

/**
 * Tells a plan by a text: two plans with one text give the same rows of the same inputs
 * (plan_identity.py).
 *
 * <p>The text has all that a plan was made of: of each operator and expression the class and what
 * its constructor was given, of columns numbers in the order in which they occur. Names of columns
 * and tables mean nothing once a plan is analysed: only those of leaves are written. Whatever is
 * not known to be told whole by its text (a function, a relation, rows) leaves the plan without one.
 *
 * <p>Compiled by Spark's own Janino, which knows no generics.
 */
public final class PlanIdentity {
  /** No objects: one for all plans. */
  public PlanIdentity() {}

  /**
   * The text of a plan; null if it has none.
   *
   * @param leaves the number of the first column of each leaf that stands for rows, and what is
   *     written for it, with NULs in between
   */
  public String of(Object plan, String leaves) {
    Map inputs = new HashMap();
    String[] parts = leaves.split("\0", -1);
    for (int i = 0; i + 1 < parts.length; i += 2) {
      inputs.put(parts[i], parts[i + 1]);
    }
    // Twice: of a leaf those columns are written that something else has, and it comes last.
    Text first = new Text(inputs, new HashMap());
    Text text = new Text(inputs, first.numbers);
    return first.add(plan) && text.add(plan) ? text.written.toString() : null;
  }

  /** The text of one plan, as far as it is written. */
  private static final class Text {
    final StringBuilder written = new StringBuilder();
    final Map numbers = new HashMap();
    private final Map inputs;
    private final Map read;

    /** Of leaves the columns are written that are keys of `read`. */
    Text(Map inputs, Map read) {
      this.inputs = inputs;
      this.read = read;
    }

    /** Writes any object that a plan is made of; false if it is not known. */
    boolean add(Object item) {
      if (item == null) {
        return word("null");
      }
      if (item instanceof View || item instanceof LocalRelation) {
        return leaf((LogicalPlan) item);
      }
      if (item instanceof SubqueryExpression) {
        return false;
      }
      if (item instanceof SubqueryAlias) {
        return add(((SubqueryAlias) item).child());
      }
      if (item instanceof Alias) {
        return word("alias") && add(((Alias) item).child()) && named((NamedExpression) item);
      }
      if (item instanceof AttributeReference || item instanceof NamedLambdaVariable) {
        return word("column") && named((NamedExpression) item);
      }
      if (item instanceof Literal) {
        Literal literal = (Literal) item;
        return word("literal") && add(literal.dataType()) && value(literal.value());
      }
      if (item instanceof ExprId) {
        return number((ExprId) item);
      }
      if (item instanceof DataType) {
        // As a column of a row: only there a collation is part of Spark's JSON.
        return word(new StructType().add("c", (DataType) item).json());
      }
      if (item instanceof Metadata) {
        return word(((Metadata) item).json());
      }
      if (item instanceof Seq) {
        return all("sequence", ((Seq) item).length(), ((Seq) item).iterator());
      }
      return item instanceof Product ? product((Product) item) : plain(item);
    }

    private boolean leaf(LogicalPlan leaf) {
      if (leaf.output().isEmpty()) {
        return false;
      }
      Attribute first = (Attribute) leaf.output().head();
      Object known = inputs.get(String.valueOf(first.exprId().id()));
      if (known == null) {
        return false;
      }
      word("rows");
      word((String) known);
      // An input may get columns that nobody reads, and is the same one.
      Iterator columns = leaf.output().iterator();
      while (columns.hasNext()) {
        Attribute column = (Attribute) columns.next();
        if (read.containsKey(column.exprId()) && !(word(column.name()) && add(column))) {
          return false;
        }
      }
      return true;
    }

    private boolean product(Product product) {
      String name = product.getClass().getName();
      if (!isKnown(product.getClass())
          || !all(name, product.productArity(), product.productIterator())) {
        return false;
      }
      if (!(product instanceof NamedExpression)) {
        return true;
      }
      // In their second lists of parameters, which are no elements of theirs.
      return named((NamedExpression) product);
    }

    /** Writes of a column what others refer to, and what they get. */
    private boolean named(NamedExpression named) {
      Expression value = (Expression) named;
      return add(named.exprId())
          && add(value.dataType())
          && add(Boolean.valueOf(value.nullable()))
          && add(named.metadata());
    }

    private boolean all(String name, int number, Iterator items) {
      word(name);
      written.append(number).append('[');
      while (items.hasNext()) {
        if (!add(items.next())) {
          return false;
        }
      }
      written.append(']');
      return true;
    }

    private boolean plain(Object item) {
      boolean known =
          item instanceof String
              || item instanceof Boolean
              || item instanceof Number
              || item instanceof Character
              || item instanceof Enum
              || item instanceof Enumeration.Value;
      if (item instanceof UTF8String) { // a pattern of LIKE ANY
        return value(item);
      }
      if (item instanceof Class) { // whose static method an expression calls
        return isKnown((Class) item) && word("class") && word(((Class) item).getName());
      }
      return known && word(item.getClass().getName()) && word(item.toString());
    }

    /** False for a class of somebody else: it may have more than it was given, or change. */
    private static boolean isKnown(Class item) {
      String name = item.getName();
      return name.startsWith("org.apache.spark.")
          || name.startsWith("scala.")
          || name.startsWith("java.");
    }

    /** A value of a literal, as Spark keeps those of its type. */
    private boolean value(Object value) {
      if (value instanceof byte[]) {
        return word(Base64.getEncoder().encodeToString((byte[]) value));
      }
      if (value instanceof UTF8String) { // by its bytes, which need not be valid
        return value(((UTF8String) value).getBytes());
      }
      boolean known =
          value == null
              || value instanceof Boolean
              || value instanceof Number
              || value instanceof Decimal;
      return known && word(value == null ? "null" : "value") && word(String.valueOf(value));
    }

    private boolean number(ExprId id) {
      Object known = numbers.get(id);
      if (known == null) {
        known = Integer.valueOf(numbers.size());
        numbers.put(id, known);
      }
      written.append('#').append(known).append(' ');
      return true;
    }

    /** Writes a text with its length: no two sequences of texts are written alike. */
    private boolean word(String text) {
      written.append(text.length()).append(':').append(text).append(' ');
      return true;
    }
  }
}
