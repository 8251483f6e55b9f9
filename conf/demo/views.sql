-- Kept up to date as flights arrive. `./spark-submit.sh plan` says how each one is.

CREATE MATERIALIZED VIEW delays_by_carrier RETAIN HISTORY '1 day' AS
  SELECT carrier,
         count(*)                                   AS flights,
         count_if(dep_time IS NULL)                 AS cancelled,
         count(dep_delay)                           AS departed,
         coalesce(sum(dep_delay), 0)                AS dep_delay_sum,
         count(arr_delay)                           AS arrived,
         coalesce(sum(arr_delay), 0)                AS arr_delay_sum,
         count_if(arr_delay > 15)                   AS arrived_late
  FROM flights
  GROUP BY carrier;

-- A view over a view and a source: the worst airline is first.
CREATE MATERIALIZED VIEW carrier_ranking RETAIN HISTORY '1 day' AS
  WITH means AS (
    SELECT d.carrier, a.name, d.flights, d.arr_delay_sum / d.arrived AS mean_arr_delay
    FROM delays_by_carrier d LEFT JOIN airlines a ON d.carrier = a.carrier
    WHERE d.arrived > 0
  )
  SELECT carrier, name, flights, mean_arr_delay,
         row_number() OVER (ORDER BY mean_arr_delay DESC, carrier) AS place
  FROM means;

-- From the change alone: no earlier row matters.
CREATE MATERIALIZED VIEW very_late AS
  SELECT time_hour, carrier, flight, origin, dest, arr_delay
  FROM flights
  WHERE arr_delay > 120;

CREATE MATERIALIZED VIEW busiest_planes AS
  SELECT f.tailnum, max(p.manufacturer) AS manufacturer, count(*) AS flights,
         sum(f.distance) AS miles
  FROM flights f JOIN planes p ON f.tailnum = p.tailnum
  GROUP BY f.tailnum
  HAVING count(*) > 100;

CREATE INDEX carrier_ranking_by_carrier ON carrier_ranking (carrier);
