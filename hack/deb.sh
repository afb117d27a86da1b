#!/bin/sh
# Builds the Debian packages into dist/: longshore, longshore-hub, longshore-oci and longshore-guest of
# the binaries in bin/, and longshore-kubernetes, longshore-docker and longshore-nomad, which have settings
# only. Their other files are in contrib/packaging/debian and contrib/systemd.
#
# VERSION      by default made of the last tag and the commit
# MAINTAINER   the packages' maintainer, Name <mail@address>
# BIN, OUT     other directories than bin/ and dist/
# ARCH         the architecture of the binaries, by default this machine's
# PROGRAM      a longshore of this machine, which writes its manual pages; by default BIN's
# PACKAGES     the names of some packages, instead of all
# COMPRESSION  as dpkg-deb -Z takes it
set -eu
cd "$(dirname "$0")/.."
bin=${BIN:-bin} out=${OUT:-dist} from=contrib/packaging/debian
version=$(hack/version.sh)
maintainer=${MAINTAINER:-The Longshore authors <longshore@localhost>}
arch=${ARCH:-$(dpkg --print-architecture)}
program=${PROGRAM:-$bin/longshore}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022
export LC_ALL=C
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# size counts as dpkg-gencontrol does, so that it does not depend on the file system.
size() { # directory
	find "$1" -path "$1/DEBIAN" -prune -o \( -type f -printf '%s\n' -o -printf '1\n' \) | awk '{ n += int(($1 + 1023) / 1024) } END { print n }'
}

# finish makes a package of a directory: everything below /etc is a conffile.
finish() { # package, architecture
	pkg=$tmp/$1 doc=$tmp/$1/usr/share/doc/$1
	install -D -m 644 "$from/copyright" "$doc/copyright"
	printf '%s (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md of the sources.\n\n -- %s  %s\n' \
		"$1" "$version" "$maintainer" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")" | gzip -9n >"$doc/changelog.gz"
	[ ! -e "$from/$1.overrides" ] || install -D -m 644 "$from/$1.overrides" "$pkg/usr/share/lintian/overrides/$1"
	install -d -m 755 "$pkg/DEBIAN"
	[ ! -d "$pkg/etc" ] || (cd "$pkg" && find etc -type f | sort | sed 's|^|/|') >"$pkg/DEBIAN/conffiles"
	(cd "$pkg" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n' | grep -v '^etc/' | sort | xargs md5sum) >"$pkg/DEBIAN/md5sums"
	sed "s/@VERSION@/$version/; s/@ARCH@/$arch/; s|@MAINTAINER@|$maintainer|; s/@SIZE@/$(size "$pkg")/" "$from/$1.control" >"$pkg/DEBIAN/control"
	for script in postinst prerm postrm; do
		[ ! -e "$from/$1.$script" ] || install -m 755 "$from/$1.$script" "$pkg/DEBIAN/$script"
	done
	dpkg-deb ${COMPRESSION:+"-Z$COMPRESSION"} --root-owner-group --build "$pkg" "$out/$1_${version}_$2.deb"
}

wanted() { # package
	pkg=$tmp/$1
	case " ${PACKAGES:-$1} " in *" $1 "*) ;; *) return 1 ;; esac
}

programs() { # name…
	for name; do
		test -x "$bin/$name" || {
			echo "deb.sh: no $bin/$name: build first (make build)" >&2
			exit 1
		}
		install -D -m 755 "$bin/$name" "$pkg/usr/bin/$name"
	done
}

if wanted longshore; then
	programs longshore longshore-keeper longshore-verify longshore-wasm longshore-compose longshore-pages
	for unit in contrib/systemd/longshore.* contrib/systemd/longshore-cri.*; do
		install -D -m 644 "$unit" "$pkg/lib/systemd/system/$(basename "$unit")"
	done
	install -d -m 755 "$pkg/lib/systemd/system-generators"
	ln -s /usr/bin/longshore "$pkg/lib/systemd/system-generators/longshore-generator"
	install -d -m 755 "$pkg/etc/longshore/conf.d"
	"$program" config default >"$pkg/etc/longshore/config.toml"
	hack/shell-files.sh "$program" "$pkg"
	finish longshore "$arch"
fi

if wanted longshore-kubernetes; then
	install -D -m 644 "$from/50-kubernetes.toml" "$pkg/etc/longshore/conf.d/50-kubernetes.toml"
	install -D -m 644 "$from/modules-load.conf" "$pkg/etc/modules-load.d/longshore-kubernetes.conf"
	install -D -m 644 "$from/sysctl.conf" "$pkg/etc/sysctl.d/60-longshore-kubernetes.conf"
	install -D -m 644 "$from/crictl.yaml" "$pkg/usr/share/longshore/crictl.yaml"
	finish longshore-kubernetes all
fi

if wanted longshore-docker; then
	install -D -m 644 "$from/50-docker.toml" "$pkg/usr/share/longshore/50-docker.toml"
	install -D -m 644 contrib/systemd/longshore-docker.socket "$pkg/lib/systemd/system/longshore-docker.socket"
	install -D -m 644 "$from/longshore-docker.drop-in" "$pkg/lib/systemd/system/longshore.service.d/docker.conf"
	install -D -m 644 "$from/longshore-docker.sysusers" "$pkg/usr/lib/sysusers.d/longshore-docker.conf"
	finish longshore-docker all
fi

if wanted longshore-nomad; then
	install -D -m 644 "$from/nomad.hcl" "$pkg/etc/nomad.d/longshore.hcl"
	install -d -m 755 "$pkg/usr/lib/nomad/plugins"
	ln -s ../../../bin/longshore "$pkg/usr/lib/nomad/plugins/longshore"
	finish longshore-nomad all
fi

if wanted longshore-oci; then
	programs longshore-oci
	finish longshore-oci "$arch"
fi

if wanted longshore-guest; then
	programs longshore-guest longshore-policy
	finish longshore-guest "$arch"
fi

if wanted longshore-hub; then
	programs longshore-hub
	install -D -m 644 contrib/systemd/longshore-hub.service "$pkg/lib/systemd/system/longshore-hub.service"
	install -D -m 644 "$from/longshore-hub.sysusers" "$pkg/usr/lib/sysusers.d/longshore-hub.conf"
	install -D -m 644 "$from/hub-options" "$pkg/etc/longshore-hub/options"
	finish longshore-hub "$arch"
fi
