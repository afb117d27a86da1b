#!/bin/sh
# Installs Longshore from a release: a tarball, below /usr/local, or a Debian package.
#
#   install.sh FILE|URL [--sha256 SUM] [--key FILE] [--prefix DIR] [--no-start]
#   install.sh --uninstall [--purge] [--prefix DIR]
#
# FILE or URL   longshore_VERSION_linux_ARCH.tar.gz or a .deb of the release. It is installed only if its sum is
#               right: that of --sha256, or of the file SHA256SUMS beside it. A URL of http:// needs --sha256 or --key.
# --key FILE    the public key of the release, in PEM form; NAME.sig beside the file must be its signature (openssl)
# --prefix DIR  another directory than /usr/local for a tarball's files
# --no-start    enables the units, and starts nothing
# --uninstall   ends all containers and removes the programs. /etc/longshore and /var/lib/longshore (images, volumes)
#               stay, as they do when a package is removed; with --purge nothing stays.
#
# An installation over an earlier one is an upgrade: containers run on. If anything fails, what was there stays.
set -eu

say() { printf 'install.sh: %s\n' "$*" >&2; }
fail() {
	say "$*"
	exit 1
}

prefix=/usr/local source='' sum='' key='' start=yes running='' uninstall='' purge=''
while [ $# -gt 0 ]; do
	case $1 in
	--sha256 | --key | --prefix)
		[ $# -ge 2 ] || fail "$1 needs a value"
		case $1 in --sha256) sum=$2 ;; --key) key=$2 ;; *) prefix=$2 ;; esac
		shift
		;;
	--no-start) start='' ;;
	--uninstall) uninstall=yes ;;
	--purge) purge=yes ;;
	-h | --help)
		sed -n '2,/^set -eu/{/^set/d;s/^# \{0,1\}//;p;}' "$0"
		exit 0
		;;
	-*) fail "unknown option $1; $0 --help lists them" ;;
	*)
		[ -z "$source" ] || fail "one file at a time: $source, or $1"
		source=$1
		;;
	esac
	shift
done
case $prefix in
*[!A-Za-z0-9_./-]* | [!/]* | '' | / | */ | *//* | */../* | */..) fail "--prefix must be an absolute path of letters, digits, dots, dashes and underscores without a slash at its end" ;;
esac
if [ -n "$uninstall" ]; then
	[ -z "$source$sum$key" ] || fail "--uninstall takes no file, --sha256 or --key"
else
	[ -n "$source" ] || fail "name a tarball or package of a release, a file or a URL; $0 --help says more"
	[ -z "$purge" ] || fail "--purge belongs to --uninstall"
fi
[ "$(uname -s)" = Linux ] || fail "Longshore needs Linux; this is $(uname -s)"
[ "$(id -u)" = 0 ] || fail "root must run this: it writes below $prefix and /etc"

share=$prefix/share/longshore
manifest=$share/manifest
systemd() { [ -d /run/systemd/system ] && command -v systemctl >/dev/null; }
packages() { # state
	if command -v dpkg-query >/dev/null; then
		dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'longshore*' 2>/dev/null | sed -n "s/^$1 //p"
	fi
}

# remove_data empties the directories of a node, unless something is mounted below them.
remove_data() {
	for dir in /run/longshore /var/lib/longshore; do
		if grep -qs " $dir/" /proc/self/mountinfo; then
			fail "something is mounted below $dir: unmount it, then: $0 --uninstall --purge"
		fi
	done
	for dir in /run/longshore /var/lib/longshore /etc/longshore; do
		# It may be a file system of its own, which stays.
		rm -rf "$dir" 2>/dev/null || rm -rf "${dir:?}"/* "$dir"/.[!.]*
	done
}

if [ -n "$uninstall" ]; then
	# Packages that are installed; for a purge those too that were removed.
	states=installed
	[ -z "$purge" ] || states='installed config-files'
	list=$(for state in $states; do packages "$state"; done)
	if [ -n "$list" ]; then
		# shellcheck disable=SC2086 # a list of packages
		if [ -n "$purge" ]; then dpkg --purge $list; else dpkg --remove $list; fi
		exit 0
	fi
	[ -e "$manifest" ] || [ -n "$purge" ] || fail "nothing is installed below $prefix: there is no $manifest"
	if [ -e "$manifest" ]; then
		if systemd; then
			# The sockets too: a call to them would start the agent again.
			systemctl stop longshore-cri.socket longshore.socket longshore.service
			systemctl --quiet disable longshore.service longshore.socket longshore-cri.socket
		elif command -v systemctl >/dev/null; then
			systemctl --quiet --root=/ disable longshore.service longshore.socket longshore-cri.socket || true
		fi
		"$prefix/bin/longshore" teardown || fail "the containers could not be ended, and nothing was removed; is an agent running? Stop it, then try again"
		[ -z "$purge" ] || remove_data
		# Files first, then the directories that were made for them, the innermost first.
		dirs=$(sed -n 's/^d //p' "$manifest" | sort -r)
		sed -n 's/^f //p' "$manifest" | while read -r file; do rm -f "$file" "$file.longshore-new" "$file.longshore-old"; done
		for dir in $dirs; do rmdir "$dir" 2>/dev/null || true; done
		if systemd; then systemctl daemon-reload; fi
	else
		remove_data
	fi
	say "Longshore is removed$([ -n "$purge" ] || echo '; /etc/longshore and /var/lib/longshore stay (--purge removes them)')"
	exit 0
fi

case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
*) fail "there is no release for $(uname -m): build Longshore from its sources" ;;
esac

tmp=$(mktemp -d)
undo=:
finish() {
	status=$?
	trap - EXIT HUP INT TERM
	[ $status -eq 0 ] || $undo
	rm -rf "$tmp"
	exit $status
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# get copies a file that is beside the source, or the source itself.
get() { # name of the file or URL, target
	case $1 in
	http://* | https://*)
		if command -v curl >/dev/null; then
			curl -fsSL --retry 3 -o "$2" -- "$1"
		elif command -v wget >/dev/null; then
			wget -q -O "$2" -- "$1"
		else
			fail "neither curl nor wget is installed: download $1 yourself"
		fi
		;;
	*) cp -- "$1" "$2" ;;
	esac
}

case $source in
http://*) [ -n "$sum$key" ] || fail "$source is not encrypted: say what must arrive, by --sha256 or --key" ;;
https://* | */*) ;;
*) source=./$source ;;
esac
case $source in
http://* | https://*) [ "${source#*\?}" = "$source" ] || fail "a URL with a query has no name: download the file yourself" ;;
*) [ -f "$source" ] || fail "there is no file $source" ;;
esac
name=${source##*/}
case $name in
*.tar.gz | *.deb) ;;
*) fail "$name is neither a tarball (.tar.gz) nor a Debian package (.deb)" ;;
esac
file=$tmp/$name
get "$source" "$file" || fail "cannot get $source"

# The sum and the signature.
if [ -n "$key" ]; then
	command -v openssl >/dev/null || fail "--key needs openssl"
	[ -r "$key" ] || fail "the key $key cannot be read"
	get "$source.sig" "$tmp/sig64" || fail "cannot get the signature $source.sig"
	openssl base64 -d -A -in "$tmp/sig64" -out "$tmp/sig"
	openssl dgst -sha256 -verify "$key" -signature "$tmp/sig" "$file" >/dev/null 2>&1 || fail "$name is not what the key $key has signed; nothing was installed"
fi
if [ -z "$sum$key" ]; then
	get "${source%/*}/SHA256SUMS" "$tmp/SHA256SUMS" || fail "there is no SHA256SUMS beside $source: get it from the release, or name the sum by --sha256"
	sum=$(awk -v name="$name" '$2 == name || $2 == "*" name { print $1; exit }' "$tmp/SHA256SUMS")
	[ -n "$sum" ] || fail "SHA256SUMS has no sum of $name"
fi
if [ -n "$sum" ]; then
	got=$(sha256sum <"$file")
	got=${got%% *}
	[ "$got" = "$(printf %s "$sum" | tr A-F a-f)" ] || fail "$name has the SHA-256 $got, not $sum; nothing was installed"
fi

# report ends an installation: the machine's problems, and the next command.
report() { # program
	"$1" doctor --offline || true
	echo
	if [ -n "$running" ] || { systemd && [ -n "$start" ]; }; then
		echo 'Longshore is installed, and its agent runs. The next command:'
		echo '    longshore run --rm -it docker.io/library/busybox sh'
	elif systemd; then
		echo 'Longshore is installed. Start the agent:'
		echo '    systemctl start longshore.service'
	else
		echo 'Longshore is installed; systemd does not run here. Start the agent:'
		echo "    $1 agent &"
	fi
}

case $name in
*.deb)
	command -v dpkg-deb >/dev/null || fail "$name is a Debian package, and this machine has no dpkg: install the tarball"
	[ ! -e "$manifest" ] || fail "a tarball is installed below $prefix: first $0 --uninstall (images and volumes stay)"
	want=$(dpkg-deb -f "$file" Architecture) || fail "$name is no Debian package"
	have=$(dpkg --print-architecture)
	[ "$want" = all ] || [ "$want" = "$have" ] || fail "$name is for $want, and this machine is $have"
	if [ -z "$start" ] && systemd; then fail "--no-start is for tarballs: a package starts its units"; fi
	if command -v apt-get >/dev/null; then
		# apt changes nothing if a dependency cannot be had, and takes a file only by its path.
		chmod 755 "$tmp"
		DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends --allow-downgrades -o Dpkg::Options::=--force-confold "$file"
	else
		dpkg --dry-run -i "$file" >/dev/null
		dpkg --force-confold -i "$file"
	fi
	if [ -e /usr/bin/longshore ]; then report /usr/bin/longshore; fi
	exit 0
	;;
esac

[ -z "$(packages installed)" ] || fail "Debian packages of Longshore are installed: upgrade them by packages, or remove them first"
mkdir "$tmp/unpacked"
tar -xzf "$file" -C "$tmp/unpacked" || fail "$name cannot be unpacked"
top=$(echo "$tmp/unpacked"/*)
if [ ! -f "$top/release" ] || [ ! -f "$top/bin/longshore" ]; then fail "$name is no tarball of Longshore"; fi
want=$(sed -n 's/^arch=//p' "$top/release")
[ "$want" = "$arch" ] || fail "$name is for $want, and this machine is $arch"
version=$(sed -n 's/^version=//p' "$top/release")
"$top/bin/longshore" help >/dev/null 2>&1 || fail "the programs of $name do not run on this machine"
# An agent that would not start with this configuration replaces none.
if [ -e /etc/longshore/config.toml ]; then
	"$top/bin/longshore" config check >"$tmp/check" 2>&1 || {
		cat "$tmp/check" >&2
		fail "version $version does not accept the configuration in /etc/longshore: correct it, and try again; nothing was installed"
	}
fi

# stage puts a new file beside its place, and writes down what is made.
: >"$tmp/files"
: >"$tmp/dirs"
make_dir() {
	[ -d "$1" ] && return
	make_dir "$(dirname "$1")"
	mkdir "$1"
	echo "$1" >>"$tmp/dirs"
}
stage() { # file, place
	make_dir "$(dirname "$2")"
	echo "$2" >>"$tmp/files"
	cp -P "$1" "$2.longshore-new"
}
restore() {
	say 'the installation failed, and is undone'
	while read -r place; do
		rm -f "$place.longshore-new"
		if [ -e "$place.longshore-old" ]; then
			mv -f "$place.longshore-old" "$place"
		elif grep -qxF "$place" "$tmp/placed" 2>/dev/null; then
			rm -f "$place"
		fi
	done <"$tmp/files"
	sort -r "$tmp/dirs" | while read -r dir; do rmdir "$dir" 2>/dev/null || true; done
}
undo=restore

umask 022
for path in "$top"/bin/*; do stage "$path" "$prefix/bin/${path##*/}"; done
for path in "$top"/units/*; do
	sed "s|/usr/bin/|$prefix/bin/|g" "$path" >"$tmp/unit"
	stage "$tmp/unit" "$prefix/lib/systemd/system/${path##*/}"
done
ln -s "$prefix/bin/longshore" "$tmp/generator"
stage "$tmp/generator" "$prefix/lib/systemd/system-generators/longshore-generator"
for path in "$top"/share/man/man1/*; do stage "$path" "$prefix/share/man/man1/${path##*/}"; done
stage "$top/share/bash-completion/completions/longshore" "$prefix/share/bash-completion/completions/longshore"
stage "$top/share/zsh/vendor-completions/_longshore" "$prefix/share/zsh/site-functions/_longshore"
stage "$top/share/fish/vendor_completions.d/longshore.fish" "$prefix/share/fish/vendor_completions.d/longshore.fish"
for path in install.sh LICENSE CHANGELOG.md; do stage "$top/$path" "$share/$path"; done
{
	sed 's/^/f /' "$tmp/files"
	echo "f $manifest"
	{
		[ ! -e "$manifest" ] || sed -n 's/^d //p' "$manifest"
		cat "$tmp/dirs"
	} | sort -u | sed 's/^/d /'
} >"$tmp/manifest"
stage "$tmp/manifest" "$manifest"
# Files of the earlier version that this one does not have.
[ ! -e "$manifest" ] || sed -n 's/^f //p' "$manifest" | grep -vxF -f "$tmp/files" >"$tmp/gone" || true
if [ ! -e /etc/longshore/config.toml ]; then
	"$top/bin/longshore" config default >"$tmp/config"
	stage "$tmp/config" /etc/longshore/config.toml
	make_dir /etc/longshore/conf.d
fi

# From here each file is exchanged in one step. What was there before has a second name until all are.
: >"$tmp/placed"
while read -r place; do
	if [ -e "$place" ] && [ ! -L "$place" ]; then ln -f "$place" "$place.longshore-old"; fi
	[ -e "$place" ] || [ -L "$place" ] || echo "$place" >>"$tmp/placed"
	mv -f "$place.longshore-new" "$place"
done <"$tmp/files"
undo=:
while read -r place; do rm -f "$place.longshore-old"; done <"$tmp/files"
if [ -e "$tmp/gone" ]; then
	while read -r place; do rm -f "$place"; done <"$tmp/gone"
fi

program=$prefix/bin/longshore
if systemd; then
	systemctl daemon-reload
	systemctl --quiet enable longshore.service
	if [ -n "$start" ]; then
		systemctl start longshore.socket longshore-cri.socket
		# Agent and keeper execute their new programs in place; where that fails, only the agent is restarted.
		if ! systemctl --quiet is-active longshore.service || ! "$program" upgrade; then
			systemctl restart longshore.service || fail "the files of version $version are installed, and the agent does not start: journalctl -u longshore.service says why"
		fi
	fi
else
	if command -v systemctl >/dev/null; then
		systemctl --quiet --root=/ enable longshore.service || true # where systemd starts later, as in an image
	fi
	if "$program" version >/dev/null 2>&1; then
		running=yes
		"$program" upgrade || fail "the files of version $version are installed, and the running agent goes on as it was: restart it"
	fi
fi
say "version $version is installed below $prefix; to remove it: $share/install.sh --uninstall --prefix $prefix"
report "$program"
