-- Flights from New York in 2013, and what is known about them. What stands in ${landing} and
-- ${source} is said when the project is run: --set landing=FOLDER.

CREATE SOURCE flights USING csv
  OPTIONS (
    path '${landing}',          -- one file per day, as the days arrive
    header 'true',
    nullValue 'NA',
    maxFilesPerTrigger '24',
    maxFileAge '36500d'         -- Spark forgets files a week older than the newest
  )
  SCHEMA (
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING,
    dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
  )
  COMMENT 'one row per flight; times of day as hhmm, delays in minutes';

CREATE SOURCE airlines USING csv
  OPTIONS (path '${source}/airlines*.csv', header 'true', nullValue 'NA')
  SCHEMA (carrier STRING, name STRING)
  ENVELOPE UPSERT KEY (carrier)
  COMMENT 'names of airlines by their code';

CREATE SOURCE planes USING csv
  OPTIONS (path '${source}/planes*.csv', header 'true', nullValue 'NA')
  SCHEMA (
    tailnum STRING, year INT, type STRING, manufacturer STRING, model STRING, engines INT,
    seats INT, speed INT, engine STRING
  )
  ENVELOPE UPSERT KEY (tailnum)
  COMMENT 'planes by their tail number';

CREATE SOURCE airports USING csv
  OPTIONS (path '${source}/airports*.csv', header 'true', nullValue 'NA')
  SCHEMA (
    faa STRING, name STRING, lat DOUBLE, lon DOUBLE, alt INT, tz INT, dst STRING, tzone STRING
  )
  ENVELOPE UPSERT KEY (faa)
  COMMENT 'airports by their code';
