package shardline_jvm;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Add;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.BitwiseAnd;
import org.apache.spark.sql.catalyst.expressions.BitwiseGet;
import org.apache.spark.sql.catalyst.expressions.Cast;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EvalMode$;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GetArrayItem;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.Not;
import org.apache.spark.sql.catalyst.expressions.ShiftRight;
import org.apache.spark.sql.catalyst.expressions.UnsafeArrayData;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.ExpressionUtils;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Numbers of rows as bits, 64 in each element of an array, which a plan has as a literal.
 *
 * <p>Tasks are sent it with the code that they run. It is of Spark's own classes: executors do not
 * know this one.
 */
public class RowBits {
  private Literal words;

  /**
   * Runs the frame, whose only column are the numbers. A negative one says that numbers cannot tell.
   *
   * @param rows How many rows there are: all numbers are below it.
   */
  public RowBits(Dataset numbers, long rows) {
    long[] bits = new long[(int) ((rows + 63) >> 6)];
    InternalRow[] found = numbers.queryExecution().executedPlan().executeCollect();
    for (int at = 0; at < found.length; at++) {
      long number = found[at].getLong(0);
      if (number < 0) {
        return;
      }
      if (number >= rows) {
        throw new IllegalStateException("row " + number + " of " + rows);
      }
      bits[(int) (number >> 6)] |= 1L << number;
    }
    words =
        new Literal(
            UnsafeArrayData.fromPrimitiveArray(bits), new ArrayType(DataTypes.LongType, false));
  }

  /** False if the frame has said that numbers cannot tell. */
  public boolean canTell() {
    return words != null;
  }

  /**
   * The rows of a frame whose bit is not set.
   *
   * @param first Name of the column with the number of the first row of a row's file.
   * @param position Name of the column with the row's position in it.
   */
  public Dataset unset(Dataset frame, String first, String position) {
    Expression number = new Add(column(frame, first), column(frame, position));
    Expression word = new GetArrayItem(words, asInt(new ShiftRight(number, literal(6))), false);
    Expression bit = new BitwiseGet(word, asInt(new BitwiseAnd(number, literal(63L))));
    // Of a number without a bit, which gives NULL, nothing is known: its row stays.
    Expression isSet = new EqualNullSafe(bit, literal((byte) 1));
    return frame.filter(ExpressionUtils.column(new Not(isSet)));
  }

  private static Expression column(Dataset frame, String name) {
    for (Object one : CollectionConverters.asJava(frame.queryExecution().analyzed().output())) {
      if (((Attribute) one).name().equals(name)) {
        return (Expression) one;
      }
    }
    throw new IllegalArgumentException(name);
  }

  private static Expression literal(Object value) {
    return Literal$.MODULE$.apply(value);
  }

  private static Expression asInt(Expression value) {
    return new Cast(value, DataTypes.IntegerType, Option.empty(), EvalMode$.MODULE$.LEGACY());
  }
}
