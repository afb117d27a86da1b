#!/bin/sh
# Writes the program's own files for shells and for man: completions for bash, zsh and fish, and the
# manual pages.
# Usage: hack/shell-files.sh PROGRAM DIRECTORY; the files are below DIRECTORY/usr/share.
set -eu
[ $# = 2 ] || {
	echo 'usage: hack/shell-files.sh PROGRAM DIRECTORY' >&2
	exit 2
}
program=$1 share=$2/usr/share
umask 022
mkdir -p "$share/bash-completion/completions" "$share/zsh/vendor-completions" "$share/fish/vendor_completions.d"
"$program" completion bash >"$share/bash-completion/completions/longshore"
"$program" completion zsh >"$share/zsh/vendor-completions/_longshore"
"$program" completion fish >"$share/fish/vendor_completions.d/longshore.fish"
"$program" man "$share/man/man1"
gzip -9nf "$share"/man/man1/longshore*.1
chmod 644 "$share"/man/man1/longshore*.1.gz
