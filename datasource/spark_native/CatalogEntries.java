package shardline_jvm;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.catalyst.catalog.TemporaryViewRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;
import py4j.Gateway;
import scala.Option;
import scala.collection.immutable.Map;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.runtime.AbstractFunction0;

/**
 * Makes tables and temporary views in the catalog of a session, without a command
 * (catalog_entries.py).
 *
 * <p>Compiled by Spark's own Janino, which knows no generics.
 */
public final class CatalogEntries {
  private final Gateway gateway;

  /** Frames are found in the gateway by which Python calls. */
  public CatalogEntries(Object gateway) {
    this.gateway = (Gateway) gateway;
  }

  /**
   * The frame of a text that reads frames by name; nothing of it is run.
   *
   * @param frames the names under which the gateway keeps the frames, with spaces in between
   * @param names those by which the text reads them, in the same order, with NULs in between
   */
  public Object analysed(
      Object session, final String text, final String frames, final String names) {
    final SparkSession found = (SparkSession) session;
    // A catalog writes names as the thread's active session does, with capitals or without.
    return found.withActive(
        new AbstractFunction0() {
          public Object apply() {
            return overViews(found, text, frames, names);
          }
        });
  }

  private Object overViews(SparkSession found, String text, String frames, String names) {
    SessionCatalog catalog = found.sessionState().catalog();
    String[] views = names.isEmpty() ? new String[0] : names.split("\0");
    String[] kept = frames.split(" ");
    boolean cased = found.sessionState().conf().caseSensitiveAnalysis();
    List made = new ArrayList();
    try {
      for (int place = 0; place < views.length; place++) {
        Dataset frame = (Dataset) gateway.getObject(kept[place]);
        Iterator spelt = spellings(views[place], cased ? text : "").iterator();
        while (spelt.hasNext()) {
          String name = (String) spelt.next();
          catalog.createTempView(name, view(name, frame.logicalPlan()), true);
          made.add(name);
        }
      }
      return found.sql(text);
    } finally {
      for (int place = 0; place < made.size(); place++) {
        catalog.dropTempView((String) made.get(place));
      }
    }
  }

  /**
   * A name, and it as a text has it: names of objects are compared without case, also where the
   * session tells capitals apart, and Spark knows a view by one spelling only.
   */
  private static Set spellings(String name, String text) {
    Set found = new LinkedHashSet();
    found.add(name);
    for (int start = 0; start + name.length() <= text.length(); start++) {
      if (text.regionMatches(true, start, name, 0, name.length())) {
        found.add(text.substring(start, start + name.length()));
      }
    }
    return found;
  }

  /** What Spark's own command makes of a frame. */
  private static TemporaryViewRelation view(String name, LogicalPlan plan) {
    Map noted = (Map) none().updated("view.storingAnalyzedPlan", "true");
    CatalogTable described =
        entry(
            new TableIdentifier(name, Option.empty()),
            CatalogTableType.VIEW(),
            plan.schema(),
            Option.empty(),
            noted,
            Option.empty());
    return new TemporaryViewRelation(described, Option.apply(plan));
  }

  /**
   * Makes a table, if it is not there.
   *
   * @param columns its columns, as JSON
   * @param provider the name of its data source
   */
  public void makeTable(
      Object session,
      String database,
      String name,
      String columns,
      String provider,
      String comment) {
    CatalogTable described =
        entry(
            new TableIdentifier(name, Option.apply(database)),
            CatalogTableType.MANAGED(),
            (StructType) DataType.fromJson(columns),
            Option.apply(provider),
            none(),
            Option.apply(comment));
    ((SparkSession) session).sessionState().catalog().createTable(described, true, false);
  }

  private static CatalogTable entry(
      TableIdentifier name,
      CatalogTableType type,
      StructType columns,
      Option provider,
      Map properties,
      Option comment) {
    Seq nothing = (Seq) (Object) Nil$.MODULE$;
    return new CatalogTable(
        name,
        type,
        CatalogStorageFormat.empty(),
        columns,
        provider,
        nothing,
        Option.empty(),
        "",
        System.currentTimeMillis(),
        -1L,
        "",
        properties,
        Option.empty(),
        Option.empty(),
        comment,
        Option.empty(),
        nothing,
        type == CatalogTableType.MANAGED(),
        true,
        none(),
        Option.empty(),
        Option.empty());
  }

  private static Map none() {
    return (Map) Map$.MODULE$.empty();
  }
}
