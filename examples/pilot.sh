#!/bin/bash
# A pilot of envbuild on a machine of yours: each command that a centre needs, once, and one page of results.
#
#   pilot.sh [-o DIR] [-s SPEC] [-p PARTITION] [-A ACCOUNT] [-n NODES] [-t MINUTES] [IMAGE.sif]
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
    printf 'error: %s\n\nhint: %s -h\n' "$1" "$0" >&2
    exit 2
}

results=pilot spec='' partition='' account='' nodes='' minutes=15
while getopts ho:s:p:A:n:t: option; do
    case $option in
        h) usage; exit 0 ;;
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
page=$results/pilot.html
rows='' bad=() untried=()

queue=()
[ -z "$partition" ] || queue+=(--partition "$partition")
[ -z "$account" ] || queue+=(--account "$account")
# The same pilot in another directory.
again=("$0" -o "$results-2" -n "$nodes" -t "$minutes")
[ -z "$spec" ] || again+=(-s "$spec")
[ -z "$partition" ] || again+=(-p "$partition")
[ -z "$account" ] || again+=(-A "$account")
[ -z "$image" ] || again+=("$image")

shown() { printf '%q ' "$@" | sed 's/ $//'; }

escaped() { sed 's/&/\&amp;/g; s/</\&lt;/g; s/>/\&gt;/g; s/"/\&quot;/g' <<<"$1"; }

# row NAME CLASS OUTCOME TEXT [FILE]: a row of the page, with a link to the step's output.
row() {
    local link=''
    [ $# -lt 5 ] || link="<a href=\"$5\">$5</a>"
    rows+="<tr><td>$1</td><td class=\"$2\">$3</td><td>$4</td><td>$link</td></tr>"$'\n'
    write_page 'The pilot has not ended.'
}

# links NAME…: links to the outputs of steps.
links() {
    local name separator=''
    for name; do
        printf '%s<a href="%s.txt">%s</a>' "$separator" "$name" "$name"
        separator=', '
    done
}

# next_steps: what a reader of the page does now.
next_steps() {
    printf '<h2>Next</h2>\n<ol>\n'
    if [ ${#bad[@]} -gt 0 ]; then
        printf '<li>Read the whole output of %s: its end says what is wrong and what to do.</li>\n' "$(links "${bad[@]}")"
    fi
    if [ -f "$results/site.yaml" ]; then
        printf '<li>Review <a href="site.yaml">site.yaml</a>, and add what a probe cannot know: comments in it name that. %s:<pre>%s</pre></li>\n' \
            'Then run the pilot again with it' "$(escaped "ENVBUILD_SITE=$(shown "$results/site.yaml") $(shown "${again[@]}")")"
    fi
    if [ ${#bad[@]} -eq 0 ]; then
        printf '<li>Write specs of your own: <code>%s init</code> begins one. docs/howto/operate-many.md goes on from there.</li>\n' \
            "$(escaped "$envbuild")"
    fi
    printf '<li>%s</li>\n</ol>\n' \
        'To send the page on, read its files first: they name this machine, its users and its paths.'
}

# write_page SENTENCE [HTML]: the page with the rows so far. A full disk leaves the page that was there.
write_page() {
    local name
    {
        cat <<END
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Pilot of envbuild</title>
<style>
:root { color-scheme: light dark; --bad: #b3261e; --good: #1a6e37; --line: #d5dae0; }
@media (prefers-color-scheme: dark) { :root { --bad: #ff8a80; --good: #6fcf8e; --line: #38414b; } }
body { margin: 0 auto; padding: 1.5rem 1.25rem; max-width: 76rem; font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
table { width: 100%; border-collapse: collapse; }
th, td { padding: .5rem .75rem .5rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
pre { margin: .25rem 0; padding: .25rem .5rem; white-space: pre-wrap; border-left: 3px solid var(--line); }
td:first-child, td:last-child, .bad, .good, .open { white-space: nowrap; }
td:first-child, .bad, .good { font-weight: 600; }
.bad { color: var(--bad); } .good { color: var(--good); }
@media (max-width: 40rem) { tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td { display: block; padding: 0; border: 0; } thead { display: none; } }
</style>
</head>
<body>
<h1>Pilot of envbuild</h1>
<p>$(escaped "$version, on $(uname -n)")<br>$(escaped "nodes of jobs: $nodes${partition:+, partition $partition}")</p>
<p><strong>$1</strong></p>
${2-}
<table>
<thead><tr><th>step</th><th>result</th><th>command, and the end of its output</th><th>output</th></tr></thead>
<tbody>
$rows</tbody>
</table>
END
        for name in test nodes bench; do
            [ ! -f "$results/$name.html" ] || printf '<p><a href="%s.html">Page of %s</a></p>\n' "$name" "$name"
        done
        printf '%s\n' '</body>' '</html>'
    } >"$page.new" && mv -- "$page.new" "$page"
}

# step NAME COMMAND…: runs it, keeps what it prints, and notes how it ended.
step() {
    local name=$1 file=$1.txt code=0 mark=good lines=3 outcome text
    shift
    printf '%-16s %s\n' "$name" "$(shown "$@")" >&2
    timeout --foreground --signal=INT --kill-after=60 "${minutes}m" "$@" </dev/null >"$results/$file" 2>&1 || code=$?
    case $code in
        0) outcome='worked' ;;
        124 | 137) outcome="took more than $minutes minutes" ;; # by SIGINT, or by SIGKILL a minute later
        130) outcome='interrupted' ;;
        *) outcome="ended with $code" ;;
    esac
    if [ "$code" != 0 ]; then bad+=("$name") mark=bad lines=15; fi
    text=$(tail -c 4000 "$results/$file" | grep -av '^next: ' | tail -n "$lines" | tr -d '\000-\010\013-\037')
    [ -z "$text" ] || text="<pre>$(escaped "$text")</pre>"
    row "$name" "$mark" "$outcome" "<code>$(escaped "$(shown "$@")")</code>$text" "$file"
    printf '%-16s %s\n' '' "$outcome" >&2
    [ "$code" != 130 ] || finish
    return "$code"
}

# skip REASON NAME…: steps that cannot be tried.
skip() {
    local reason=$1 name
    shift
    for name; do
        printf '%-16s not tried: %s\n' "$name" "$reason" >&2
        untried+=("$name")
        row "$name" open 'not tried' "$(escaped "$reason")"
    done
}

finish() {
    local sentence="Every step that was tried ended well."
    [ ${#bad[@]} -eq 0 ] || sentence="${#bad[@]} of the steps did not end well: $(links "${bad[@]}")."
    [ ${#untried[@]} -eq 0 ] || sentence+=" Not tried: $(printf '%s\n' "${untried[@]}" | paste -sd, | sed 's/,/, /g')."
    if ! write_page "$sentence" "$(next_steps)"; then
        printf 'error: `%s` was not written, or lacks steps; the steps above count\n' "$page" >&2
        exit 4
    fi
    printf '\nresults: %s\n' "$page" >&2
    if [ ${#bad[@]} -eq 0 ]; then exit 0; fi
    exit 4
}

version=$("$envbuild" --version </dev/null 2>&1 | head -n 1)

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
    skip 'no nodes of Slurm' probe-node
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
        skip 'no nodes of Slurm' nodes
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
    else
        skip 'there is no module' load
    fi
    step kernel "$envbuild" kernel install "$built" --prefix "$results/jupyter"
else
    skip 'there is no image' check test nodes vet bench module load kernel
fi

if [ -n "$image" ]; then
    if step extend "$envbuild" extend "$image" tabulate -o "$results/extended.sif"; then
        step extended "$envbuild" test "$results/extended.sif"
    else
        skip 'there is no extended image' extended
    fi
else
    skip 'no image was named' extend extended
fi
finish
