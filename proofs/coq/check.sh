#!/usr/bin/env bash
# Compiles every file of this directory and of kernel/ with Coq, in a directory of its own, and checks that
# nothing is assumed: no word by which Coq takes a thing on trust, and for every theorem the answer "Closed under the global context".
#
#   check.sh [DIR]     compiles in DIR and leaves the compiled files there; by default in one that is removed
#
# Exit code: 0 checked, 1 not proved, 77 skipped, because there is no coqc; then nothing was checked.
set -euo pipefail
cd "${0%/*}"

if ! command -v coqc > /dev/null; then
    echo "coq: SKIPPED, nothing was checked: no coqc on PATH; install it with: apt-get install --no-install-recommends coq"
    exit 77
fi

if [ $# -gt 0 ]; then
    build=$1
    mkdir -p "$build"
else
    build=$(mktemp -d)
    trap 'rm -rf "$build"' EXIT
fi
files=$(sed -n 's/\.v$//p' _CoqProject)
fail() { echo "coq: FAILED: $*" >&2; exit 1; }

# Every file here is compiled, and Audit.v, the last, asks about every theorem.
[ "$(sort <<< "$files")" = "$(for f in *.v kernel/*.v; do [ ! -e "$f" ] || echo "${f%.v}"; done | sort)" ] || fail "_CoqProject does not list the files"
stated=$(for f in $files; do sed -n "s/^Theorem \([A-Za-z0-9_']*\).*/${f//\//.}.\1/p" "$f.v"; done | sort)
asked=$(sed -n 's/^Print Assumptions \(.*\)\.$/\1/p' Audit.v | sort)
[ "$stated" = "$asked" ] || fail "Audit.v does not ask about these theorems, or about others: $(comm -3 <(echo "$stated") <(echo "$asked") | xargs)"

# No assumption: neither of these words, nor a variable or hypothesis outside of a section (Coq makes it an axiom and
# Print Assumptions shows it, as it does all the others).
trusted=$(grep -nwE 'Admitted|admit|Axiom|Axioms|Parameter|Parameters|Conjecture|Abort|give_up|bypass_check|Unset' $(sed -n '/\.v$/p' _CoqProject)) \
    && fail "taken on trust: $trusted"

for f in $files; do
    mkdir -p "$build/$(dirname "$f")"
    cp "$f.v" "$build/$f.v"
    said=$(cd "$build" && coqc -q -R . Placealg "$f.v" 2>&1) || fail "$said"
    if [ "$f" = Audit ]; then answers=$said
    elif [ -n "$said" ]; then fail "$f.v: $said"; fi
done
wanted=$(wc -l <<< "$asked")
closed=$(grep -cx 'Closed under the global context' <<< "$answers") || true
[ "$closed" = "$wanted" ] && [ "$(wc -l <<< "$answers")" = "$wanted" ] || fail "of $wanted theorems $closed are closed:
$answers"
echo "coq: $(wc -w <<< "$files") files, $wanted theorems, each closed under the global context; $(coqc --version | head -n 1)"
