#!/bin/sh
# Builds a Debian package of bin/ into dist/. VERSION may be set; otherwise it is
# made of the last tag and the commit.
set -eu
cd "$(dirname "$0")/.."
test -x bin/longshore && test -x bin/longshore-keeper || {
	echo "deb.sh: build first (make build)" >&2
	exit 1
}
version=${VERSION:-$(git describe --tags --match 'v[0-9]*' --dirty=+dirty 2>/dev/null | sed 's/^v//; s/-\([0-9]*\)-g/+\1.g/' || true)}
version=${version:-0.0.0+$(git rev-parse --short HEAD 2>/dev/null || echo local)}
arch=$(dpkg --print-architecture)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
pkg=$tmp/pkg
install -D -m 755 bin/longshore "$pkg/usr/bin/longshore"
install -D -m 755 bin/longshore-keeper "$pkg/usr/bin/longshore-keeper"
install -D -m 755 bin/longshore-oci "$pkg/usr/bin/longshore-oci"
install -D -m 755 bin/longshore-verify "$pkg/usr/bin/longshore-verify"
for unit in contrib/systemd/*; do
	install -D -m 644 "$unit" "$pkg/lib/systemd/system/$(basename "$unit")"
done
install -d -m 755 "$pkg/etc/longshore/conf.d" "$pkg/DEBIAN" "$pkg/usr/share/bash-completion/completions" \
	"$pkg/usr/share/zsh/vendor-completions" "$pkg/usr/share/fish/vendor_completions.d"
bin/longshore config default >"$pkg/etc/longshore/config.toml"
bin/longshore completion bash >"$pkg/usr/share/bash-completion/completions/longshore"
bin/longshore completion zsh >"$pkg/usr/share/zsh/vendor-completions/_longshore"
bin/longshore completion fish >"$pkg/usr/share/fish/vendor_completions.d/longshore.fish"
install -D -m 644 LICENSE "$pkg/usr/share/doc/longshore/copyright"
echo /etc/longshore/config.toml >"$pkg/DEBIAN/conffiles"
cat >"$pkg/DEBIAN/control" <<END
Package: longshore
Version: $version
Architecture: $arch
Maintainer: The Longshore authors <longshore@localhost>
Section: admin
Priority: optional
Recommends: ca-certificates
Suggests: crun | runc
Description: node agent that any orchestrator can drive
 Runs containers on one execution engine and speaks orchestrators' own node
 contracts. Containers outlive restarts and upgrades of the agent.
END
# Upgrades restart the agent; containers go on. Nothing is started on install:
# the administrator enables the units.
cat >"$pkg/DEBIAN/postinst" <<'END'
#!/bin/sh
set -e
if [ "$1" = configure ] && [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true
	if [ -n "$2" ]; then systemctl try-restart longshore.service || true; fi
fi
END
cat >"$pkg/DEBIAN/prerm" <<'END'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
	systemctl stop longshore.service longshore.socket longshore-cri.socket || true
fi
END
cat >"$pkg/DEBIAN/postrm" <<'END'
#!/bin/sh
set -e
if [ "$1" = purge ]; then
	rm -rf /var/lib/longshore
	rmdir /etc/longshore/conf.d /etc/longshore 2>/dev/null || true
fi
END
chmod 755 "$pkg/DEBIAN/postinst" "$pkg/DEBIAN/prerm" "$pkg/DEBIAN/postrm"
mkdir -p dist
dpkg-deb --root-owner-group --build "$pkg" "dist/longshore_${version}_${arch}.deb"
