package shardline_jvm;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.StreamingQueryProgress;
import org.apache.spark.sql.streaming.ui.StreamingQueryStatisticsPage;
import org.apache.spark.sql.streaming.ui.StreamingQueryTab;
import org.apache.spark.sql.streaming.ui.StreamingQueryUIData;
import org.apache.spark.ui.SparkUI;
import org.apache.spark.ui.WebUIPage;
import scala.collection.immutable.Seq;
import scala.collection.mutable.ArrayBuffer;
import scala.jdk.javaapi.CollectionConverters;
import scala.xml.Unparsed;

/**
 * Adds what Python says of a streaming query to the page of its statistics in Spark's UI. Compiled
 * by Spark's own Janino (compiled_java.py), so in raw types and without lambdas.
 *
 * <p>Spark draws metrics of others there only if a state store reports them, and a stateless query
 * has none. So the page is replaced, once in a UI, by one that is Spark's own and has a section
 * more. While nobody says anything it is Spark's page to the letter.
 */
public class QueryStatistics {
  private final Function describe;
  private Page shown;

  public QueryStatistics(Function describe) {
    this.describe = describe;
  }

  /** Shows the section from now on; false if the session has no such page. */
  public synchronized boolean show(SparkSession session) {
    // Spark makes the tab when the first query starts. Asked for what fills it, it makes it now.
    if (session.sharedState().streamingQueryStatusListener().isEmpty()) {
      return false; // the UI is off, or its tab of streaming queries is
    }
    SparkUI ui = (SparkUI) session.sparkContext().ui().get();
    Seq tabs = ui.getTabs();
    for (int i = 0; i < tabs.size(); i++) {
      if (tabs.apply(i) instanceof StreamingQueryTab) {
        shown = pageOf((StreamingQueryTab) tabs.apply(i), ui, session);
      }
    }
    if (shown != null) {
      shown.describe = describe;
    }
    return shown != null;
  }

  /** Shows it no longer; somebody else's section stays. */
  public synchronized void hide() {
    if (shown != null && shown.describe == describe) {
      shown.describe = null;
    }
  }

  /** The page of the tab, put in the place of Spark's own if it is not there; null for neither. */
  private static Page pageOf(StreamingQueryTab tab, SparkUI ui, SparkSession session) {
    synchronized (tab) {
      ArrayBuffer pages = tab.pages();
      for (int i = 0; i < pages.length(); i++) {
        WebUIPage own = (WebUIPage) pages.apply(i);
        if (own instanceof Page) {
          return (Page) own;
        }
        if (own.getClass() == StreamingQueryStatisticsPage.class) {
          Page page = new Page(tab, session.sharedState().activeStreamingQueries());
          page.prefix_$eq(own.prefix());
          // Ours first: after an error Spark's page is still there, and no request finds neither.
          ui.attachPage(page);
          pages.update(i, page);
          ui.detachPage(own);
          return page;
        }
      }
      return null;
    }
  }

  /** Spark's page, and the section below the name of the query. */
  private static class Page extends StreamingQueryStatisticsPage {
    private final Map running;
    volatile Function describe;

    Page(StreamingQueryTab tab, Map running) {
      super(tab);
      this.running = running;
    }

    public Seq generateBasicInfo(StreamingQueryUIData query) {
      Seq own = super.generateBasicInfo(query);
      String section = sectionOf(query);
      if (section == null) {
        return own;
      }
      List nodes = new ArrayList(CollectionConverters.asJava(own));
      nodes.add(new Unparsed(section));
      return CollectionConverters.asScala(nodes).toSeq();
    }

    /** The section as HTML; null if there is nothing to be said, or nobody who could. */
    private String sectionOf(StreamingQueryUIData query) {
      Function asked = describe;
      if (asked == null) {
        return null;
      }
      try {
        Map request = new HashMap();
        request.put("run", query.summary().runId());
        request.put("name", query.summary().name());
        StreamingQueryProgress progress = newest(query);
        if (progress != null) {
          request.put("progress", progress.json());
        }
        return (String) asked.apply(request);
      } catch (RuntimeException e) {
        return null; // no Python: the driver is shutting down
      }
    }

    /** The newest progress. That of an idle or frozen query only the query itself has. */
    private StreamingQueryProgress newest(StreamingQueryUIData query) {
      Object found = running.get(query.summary().id());
      if (found instanceof StreamingQuery) {
        StreamingQuery one = (StreamingQuery) found;
        if (one.runId().toString().equals(query.summary().runId())) {
          return one.lastProgress();
        }
      }
      return query.lastProgress();
    }
  }
}
