package shardline_jvm;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Base64;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.api.python.PythonUtils$;
import org.apache.spark.sql.classic.SparkSession$;
import org.apache.spark.sql.errors.QueryCompilationErrors$;
import org.apache.spark.sql.execution.datasources.DataSourceManager$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataType$;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;
import scala.Option;
import scala.Some;
import scala.collection.immutable.Map$;

/**
 * The Python source format("shard") whose objects are made in the driver's Python, and not by a
 * process that Spark starts for it (driver_source.py). All else is Spark's own.
 *
 * <p>Compiled by Spark's own Janino, so in raw types and without lambdas.
 */
public class DriverSource extends UserDefinedPythonDataSource {
  private static final String NAME = "shard";
  private static final String SETTING = "spark.shardline.nativeReads";
  private static final ObjectMapper JSON = new ObjectMapper();

  private final transient Function maker;

  /**
   * A source that is not known to Spark yet.
   *
   * @param reference the Python class, pickled
   * @param maker takes what is asked as JSON, and returns what was made; null if nothing was
   */
  public DriverSource(byte[] reference, Function maker) {
    super(PythonUtils$.MODULE$.createPythonFunction(reference));
    this.maker = maker;
  }

  /**
   * Puts the source in the place of the one that Spark would find by itself.
   *
   * @param alone true if Spark would find no other one: it looks for none any more
   * @return true if it is there now
   */
  public boolean install(boolean alone) {
    DataSourceManager$ manager = DataSourceManager$.MODULE$;
    synchronized (manager) { // which it locks while it looks
      Option found = manager.dataSourceBuilders();
      if (found.isEmpty() && !alone) {
        return false;
      }
      scala.collection.immutable.Map sources =
          found.isEmpty()
              ? (scala.collection.immutable.Map) Map$.MODULE$.empty()
              : (scala.collection.immutable.Map) found.get();
      manager.dataSourceBuilders_$eq(
          new Some((scala.collection.immutable.Map) sources.updated(NAME, this)));
      return true;
    }
  }

  public PythonDataSourceCreationResult createDataSourceInPython(
      String provider, CaseInsensitiveStringMap options, Option schema) {
    PythonDataSourceCreationResult made = isOff() ? null : made(options, schema);
    return made == null ? super.createDataSourceInPython(provider, options, schema) : made;
  }

  /**
   * What goes to executors, which do not know this class. (Not private: Janino would give the method
   * another name, and Java would not find it.)
   */
  protected Object writeReplace() {
    return new UserDefinedPythonDataSource(dataSourceCls());
  }

  private static boolean isOff() {
    return SparkSession$.MODULE$.active().conf().get(SETTING, "true").equals("false");
  }

  private PythonDataSourceCreationResult made(CaseInsensitiveStringMap options, Option schema) {
    Map asked = new HashMap();
    asked.put("options", new HashMap(options));
    asked.put("folder", System.getProperty("user.dir"));
    asked.put("schema", schema.isEmpty() ? null : ((StructType) schema.get()).json());
    String answer = (String) maker.apply(text(asked));
    return answer == null ? null : result(tree(answer));
  }

  private static PythonDataSourceCreationResult result(JsonNode answer) {
    if (answer.has("cancelled")) {
      // The one kind of exception that Spark does not keep with the query, which may be run again.
      Platform.throwException(new InterruptedException(answer.get("cancelled").textValue()));
    }
    if (answer.has("refused")) {
      String why = answer.get("refused").textValue();
      Platform.throwException(
          QueryCompilationErrors$.MODULE$.pythonDataSourceError("create", "instance", why));
    }
    byte[] source = Base64.getDecoder().decode(answer.get("source").textValue());
    DataType schema = DataType$.MODULE$.fromJson(answer.get("schema").textValue());
    return new PythonDataSourceCreationResult(source, (StructType) schema);
  }

  private static String text(Map asked) {
    try {
      return JSON.writeValueAsString(asked);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }

  private static JsonNode tree(String answer) {
    try {
      return JSON.readTree(answer);
    } catch (JsonProcessingException e) {
      throw new IllegalStateException(e);
    }
  }
}
