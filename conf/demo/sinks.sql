-- The ranking for others, as files that anything can read.

CREATE SINK ranking_out FROM carrier_ranking USING parquet
  OPTIONS (path '${out}/carrier_ranking', interval '2s')
  ENVELOPE DIFF;
