#!/bin/bash
# A pilot of envbuild on a machine of yours: each command that a centre needs, once, and one page of results.
#
#   examples/pilot.sh [-o DIR] [-s SPEC] [-p PARTITION] [-A ACCOUNT] [-n NODES] [-t MINUTES] [IMAGE.sif]
#
# A step that fails is noted, and the next one goes on. Everything is written below DIR, but for the store
# (ENVBUILD_STORE). docs/howto/pilot.md explains the steps.
set -uo pipefail

usage() {
    sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"
    cat <<'END'
  -o DIR        the directory of the results [pilot]; it must not exist
  -s SPEC       a spec of yours to build, in place of a small one with MPICH and NumPy
  -p PARTITION  the partition of Slurm for jobs
  -A ACCOUNT    the account of jobs
  -n NODES      nodes of jobs [2 if there is Slurm, else none]
  -t MINUTES    the limit of each step [15]
  IMAGE.sif     an image of yours, to which a package is added

The exit code is 0 if every step ended well, 4 if one did not, and 2 for a wrong command line.
END
}

wrong() {
    printf 'error: %s\n\nhint: examples/pilot.sh -h\n' "$1" >&2
    exit 2
}

results=pilot spec='' partition='' account='' nodes='' minutes=15
while getopts ho:s:p:A:n:t: option; do
    case $option in
        h) usage && exit 0 ;;
        o) results=$OPTARG ;;
        s) spec=$OPTARG ;;
        p) partition=$OPTARG ;;
        A) account=$OPTARG ;;
        n) nodes=$OPTARG ;;
        t) minutes=$OPTARG ;;
        *) wrong 'the command line has an unknown option' ;;
    esac
done
shift $((OPTIND - 1))
[ $# -le 1 ] || wrong "one image is tried, and the command line names $#"
image=${1-}
[ -z "$image" ] || [ -f "$image" ] || wrong "there is no image \`$image\`"
[ -z "$spec" ] || [ -f "$spec" ] || wrong "there is no spec \`$spec\`"
[[ $minutes =~ ^[1-9][0-9]{0,3}$ ]] || wrong "-t: \`$minutes\` is not a number of minutes"
[[ -z $nodes || $nodes =~ ^[0-9]{1,5}$ ]] || wrong "-n: \`$nodes\` is not a number of nodes"
envbuild=${ENVBUILD:-envbuild}
command -v "$envbuild" >/dev/null || wrong "there is no program \`$envbuild\`: install envbuild, or name it in ENVBUILD"
if [ -z "$nodes" ]; then
    nodes=0
    if command -v srun sinfo >/dev/null && sinfo >/dev/null 2>&1; then nodes=2; fi
fi
mkdir -- "$results" || wrong "\`$results\` cannot be made: name another directory with -o"
results=$(cd -- "$results" && pwd -P)
page=$results/pilot.md
failed=0

queue=()
[ -z "$partition" ] || queue+=(--partition "$partition")
[ -z "$account" ] || queue+=(--account "$account")

shown() { printf '%q ' "$@" | sed 's/ $//'; }

row() { printf '| %s | %s | `%s` | [%s](%s) |\n' "$1" "$2" "${3//|/\\|}" "$4" "$4" >>"$page"; }

# step NAME COMMAND…: runs it, keeps what it prints, and notes how it ended.
step() {
    local name=$1 file=$1.txt code=0 outcome
    shift
    printf '%-16s %s\n' "$name" "$(shown "$@")" >&2
    timeout --foreground --signal=INT --kill-after=60 "${minutes}m" "$@" </dev/null >"$results/$file" 2>&1 || code=$?
    case $code in
        0) outcome='worked' ;;
        124) outcome="**took more than $minutes minutes**" ;;
        130) outcome='**interrupted**' ;;
        *) outcome="**ended with $code**" ;;
    esac
    [ "$code" = 0 ] || failed=$((failed + 1))
    row "$name" "$outcome" "$(shown "$@")" "$file"
    printf '%-16s %s\n' '' "${outcome//\*/}" >&2
    [ "$code" != 130 ] || finish
    return "$code"
}

skip() {
    printf '%-16s not tried: %s\n' "$1" "$2" >&2
    printf '| %s | not tried | %s | |\n' "$1" "$2" >>"$page"
}

finish() {
    {
        printf '\n'
        if [ "$failed" = 0 ]; then printf 'Every step that was tried ended well.\n'; else
            printf '%s of the steps did not end well: their files say why, and what to do.\n' "$failed"
        fi
        if [ -f "$results/site.yaml" ]; then
            printf '\nReview [site.yaml](site.yaml), and run the pilot again with `ENVBUILD_SITE=%s`.\n' \
                "$results/site.yaml"
        fi
        for name in test nodes bench; do
            if [ -f "$results/$name.html" ]; then printf '\n[Page of %s](%s.html)\n' "$name" "$name"; fi
        done
        printf '\nThe files name this machine, its users and its paths: read them before you send them on.\n'
    } >>"$page"
    printf '\nresults: %s\n' "$page" >&2
    if [ "$failed" = 0 ]; then exit 0; fi
    exit 4
}

cat >"$page" <<END
# Pilot of envbuild

- $("$envbuild" --version </dev/null 2>&1 | head -n 1), on $(uname -n)
- nodes of jobs: $nodes${partition:+, partition $partition}

| step | result | command | output |
|---|---|---|---|
END

if [ -z "$spec" ]; then
    spec=$results/pilot.yaml
    cat >"$spec" <<'END'
name: pilot
version: "1"
mpi: mpich
packages: {python: [numpy, ipykernel]}
END
fi
built=$results/pilot.sif

step doctor "$envbuild" doctor
if [ "$nodes" -gt 0 ] && [ -n "$partition" ]; then
    step probe "$envbuild" site probe ${queue[@]+"${queue[@]}"} --time "$minutes" -o "$results/site.yaml"
else
    step probe "$envbuild" site probe -o "$results/site.yaml"
fi
if [ "$nodes" -gt 0 ]; then
    step probe-node srun --nodes=1 --ntasks=1 ${queue[@]+"${queue[@]}"} --time="$minutes" \
        "$envbuild" site check "$results/site.yaml"
else
    skip probe-node 'no nodes of Slurm'
fi

if step build "$envbuild" build "$spec" -o "$built"; then
    step check "$envbuild" check "$built"
    step test "$envbuild" test "$built" --report "$results/test.html"
    if [ "$nodes" -gt 0 ]; then
        job=(--nodes "$nodes" ${queue[@]+"${queue[@]}"} --time "$minutes")
        step nodes "$envbuild" test "$built" "${job[@]}" --report "$results/nodes.html"
        step vet "$envbuild" vet "$built" "${job[@]}"
        step bench "$envbuild" bench "$built" "${job[@]}" --results "$results/results" --report "$results/bench.html"
    else
        skip nodes 'no nodes of Slurm'
        step vet "$envbuild" vet "$built"
        step bench "$envbuild" bench "$built" --results "$results/results" --report "$results/bench.html"
    fi
    if step module "$envbuild" module install "$built" --root "$results/modules"; then
        label=$("$envbuild" module ls --root "$results/modules" </dev/null 2>/dev/null | awk 'NR == 1 { print $1 }')
        cat >"$results/load.sh" <<END
# In a login shell, which has the command \`module\` where the centre offers it.
module use $(printf %q "$results/modules/modulefiles") && module load $label &&
    python -c 'import sys; print(sys.version, sys.prefix)'
END
        step load bash -l "$results/load.sh"
    fi
    step kernel "$envbuild" kernel install "$built" --prefix "$results/jupyter"
else
    skip test 'there is no image'
fi

if [ -n "$image" ]; then
    if step extend "$envbuild" extend "$image" tabulate -o "$results/extended.sif"; then
        step extended "$envbuild" test "$results/extended.sif"
    fi
else
    skip extend 'no image was named'
fi
finish
