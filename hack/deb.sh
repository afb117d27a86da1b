#!/bin/sh
# Builds the Debian packages longshore and longshore-hub, of the binaries in bin/,
# longshore-kubernetes and longshore-docker into dist/. Their other files are in
# contrib/packaging/debian and contrib/systemd.
#
# VERSION      by default made of the last tag and the commit
# MAINTAINER   the packages' maintainer, Name <mail@address>
# BIN, OUT     other directories than bin/ and dist/
# COMPRESSION  as dpkg-deb -Z takes it
set -eu
cd "$(dirname "$0")/.."
bin=${BIN:-bin} out=${OUT:-dist} from=contrib/packaging/debian
for program in longshore longshore-keeper longshore-oci longshore-verify longshore-wasm longshore-compose longshore-hub; do
	test -x "$bin/$program" || {
		echo "deb.sh: no $bin/$program: build first (make build)" >&2
		exit 1
	}
done
version=$(hack/version.sh)
maintainer=${MAINTAINER:-The Longshore authors <longshore@localhost>}
arch=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
umask 022
mkdir -p "$out"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

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
	sed "s/@VERSION@/$version/; s/@ARCH@/$arch/; s|@MAINTAINER@|$maintainer|; s/@SIZE@/$(du -sk --exclude=DEBIAN "$pkg" | cut -f1)/" "$from/$1.control" >"$pkg/DEBIAN/control"
	for script in postinst prerm postrm; do
		[ ! -e "$from/$1.$script" ] || install -m 755 "$from/$1.$script" "$pkg/DEBIAN/$script"
	done
	dpkg-deb ${COMPRESSION:+"-Z$COMPRESSION"} --root-owner-group --build "$pkg" "$out/$1_${version}_$2.deb"
}

pkg=$tmp/longshore
for program in longshore longshore-keeper longshore-oci longshore-verify longshore-wasm longshore-compose; do
	install -D -m 755 "$bin/$program" "$pkg/usr/bin/$program"
done
for unit in contrib/systemd/longshore.* contrib/systemd/longshore-cri.*; do
	install -D -m 644 "$unit" "$pkg/lib/systemd/system/$(basename "$unit")"
done
install -d -m 755 "$pkg/lib/systemd/system-generators"
ln -s /usr/bin/longshore "$pkg/lib/systemd/system-generators/longshore-generator"
install -d -m 755 "$pkg/etc/longshore/conf.d"
"$bin/longshore" config default >"$pkg/etc/longshore/config.toml"
hack/shell-files.sh "$bin/longshore" "$pkg"
finish longshore "$arch"

pkg=$tmp/longshore-kubernetes
install -D -m 644 "$from/50-kubernetes.toml" "$pkg/etc/longshore/conf.d/50-kubernetes.toml"
install -D -m 644 "$from/modules-load.conf" "$pkg/etc/modules-load.d/longshore-kubernetes.conf"
install -D -m 644 "$from/sysctl.conf" "$pkg/etc/sysctl.d/60-longshore-kubernetes.conf"
install -D -m 644 "$from/crictl.yaml" "$pkg/usr/share/longshore/crictl.yaml"
finish longshore-kubernetes all

pkg=$tmp/longshore-docker
install -D -m 644 "$from/50-docker.toml" "$pkg/usr/share/longshore/50-docker.toml"
install -D -m 644 contrib/systemd/longshore-docker.socket "$pkg/lib/systemd/system/longshore-docker.socket"
install -D -m 644 "$from/longshore-docker.drop-in" "$pkg/lib/systemd/system/longshore.service.d/docker.conf"
install -D -m 644 "$from/longshore-docker.sysusers" "$pkg/usr/lib/sysusers.d/longshore-docker.conf"
finish longshore-docker all

pkg=$tmp/longshore-hub
install -D -m 755 "$bin/longshore-hub" "$pkg/usr/bin/longshore-hub"
install -D -m 644 contrib/systemd/longshore-hub.service "$pkg/lib/systemd/system/longshore-hub.service"
install -D -m 644 "$from/longshore-hub.sysusers" "$pkg/usr/lib/sysusers.d/longshore-hub.conf"
install -D -m 644 "$from/hub-options" "$pkg/etc/longshore-hub/options"
finish longshore-hub "$arch"
