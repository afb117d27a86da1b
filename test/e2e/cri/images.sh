#!/usr/bin/env bash
# Makes the images that critest and containerd's integration suite ask for, from
# Debian packages, and pushes them to a registry on loopback under the names that
# these use, without the host:
# registry.k8s.io/pause:3.9 becomes HOST/pause:3.9.
# Usage: images.sh HOST:PORT CACHE_DIRECTORY, after images.sh fetch CACHE_DIRECTORY,
# which downloads the packages (and installs none).
#
# The layers are made with fixed times and owners, so that an image has the same
# digest wherever it is made from the same packages; test-image-digest, which
# holds nothing of any package, has the same one everywhere.
set -euo pipefail
registry=$1 cache=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$cache/debs"
if [ "$registry" = fetch ]; then
  cd "$cache/debs"
  for p in busybox nginx nginx-common libpcre2-8-0 libssl3 zlib1g libcrypt1 stress; do
    compgen -G "${p}_*.deb" >/dev/null || apt-get download -qq -o APT::Sandbox::User=root "$p"
  done
  exit
fi
work=$(mktemp -d "$cache/work-XXXXXX")
trap 'rm -rf "$work"' EXIT

# package NAME DIRECTORY: the package's files.
package() {
  mkdir -p "$2"
  dpkg-deb -x "$cache/debs/$1"_*.deb "$2"
}

# program DIRECTORY FILE TARGET: a dynamic program with its libraries.
# Debian's /lib is usr/lib; the images have it so too.
program() {
  install -D -m 755 "$2" "$1$3"
  local lib
  for lib in $(LD_LIBRARY_PATH=${libs:-} ldd "$2" | grep -o '/[^ ]*'); do
    install -D -m 755 "$lib" "$1/lib/$(basename "$lib")"
    # The loader is known by its absolute path.
    case $lib in */ld-linux*) mkdir -p "$1/lib64" && ln -sf "../lib/$(basename "$lib")" "$1/lib64/$(basename "$lib")" ;; esac
  done
}

# image NAME:TAG ROOT [CONFIG [owned]]: one layer, CONFIG the OCI image's "config"
# object. All files are root's, unless it is owned: then each keeps its owner.
image() {
  local name=$1 root=$2 config=${3:-'{}'} o="$work/oci" layer diff size digest owner=(--owner=0 --group=0)
  [ -z "${4:-}" ] || owner=()
  rm -rf "$o" && mkdir -p "$o/blobs/sha256"
  tar -C "$root" --sort=name --mtime=@1700000000 "${owner[@]}" --numeric-owner --format=gnu -cf "$work/layer" .
  diff=$(sha256sum <"$work/layer" | cut -d' ' -f1)
  layer=$diff size=$(stat -c %s "$work/layer")
  mv "$work/layer" "$o/blobs/sha256/$layer"
  blob() { # the JSON of standard input as a blob; prints digest and size
    jq -cj . >"$work/blob"
    digest=$(sha256sum <"$work/blob" | cut -d' ' -f1) bytes=$(stat -c %s "$work/blob")
    mv "$work/blob" "$o/blobs/sha256/$digest"
  }
  blob < <(jq -n --argjson c "$config" --arg d "sha256:$diff" '{created: "2023-11-14T22:13:20Z", architecture: "amd64", os: "linux", config: $c, rootfs: {type: "layers", diff_ids: [$d]}}')
  blob < <(jq -n --arg c "sha256:$digest" --argjson cs "$bytes" --arg l "sha256:$layer" --argjson ls "$size" '{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json",
    config: {mediaType: "application/vnd.oci.image.config.v1+json", digest: $c, size: $cs},
    layers: [{mediaType: "application/vnd.oci.image.layer.v1.tar", digest: $l, size: $ls}]}')
  jq -n --arg d "sha256:$digest" --argjson s "$bytes" '{schemaVersion: 2, manifests: [{mediaType: "application/vnd.oci.image.manifest.v1+json", digest: $d, size: $s, annotations: {"org.opencontainers.image.ref.name": "x"}}]}' >"$o/index.json"
  echo '{"imageLayoutVersion": "1.0.0"}' >"$o/oci-layout"
  skopeo copy -q --insecure-policy --preserve-digests --dest-tls-verify=false "oci:$o:x" "docker://$registry/$name"
  echo "$name sha256:$digest"
}

# with ROOT FILE TEXT: a copy of a root with one more file.
with() {
  rm -rf "$work/with" && cp -a "$1" "$work/with"
  printf '%s\n' "$3" >"$work/with/$2"
}

# busybox: the dynamic one. Its shell finds ls by $PATH and not in itself.
package busybox "$work/deb"
bb="$work/busybox"
mkdir -p "$bb"/{bin,etc,tmp,root,usr/bin,var/run,proc,sys,dev,home,var/www}
chmod 1777 "$bb/tmp"
program "$bb" "$work/deb/bin/busybox" /bin/busybox
# Hard links: masking /bin/ls must not mask the others.
for a in $("$bb/bin/busybox" --list); do ln "$bb/bin/busybox" "$bb/bin/$a"; done
cat >"$bb/etc/passwd" <<'E'
root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
E
cat >"$bb/etc/group" <<'E'
root:x:0:
daemon:x:1:
www-data:x:33:
users:x:100:
nobody:x:65534:
E
full="$work/full"
cp -a "$bb" "$full"
program "$full" "$(command -v pgrep)" /usr/bin/pgrep
program "$full" "$(command -v ipcs)" /usr/bin/ipcs
path='"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]'
image e2e-test-images/busybox:1.29-2 "$full" "{$path, \"Cmd\": [\"sh\"]}"

# Two images with USER as a number, as a name, and both with a group.
image k8s-staging-cri-tools/test-image-user-uid:latest "$bb" "{$path, \"Cmd\": [\"sh\"], \"User\": \"1002\"}"
image k8s-staging-cri-tools/test-image-user-username:latest "$bb" "{$path, \"Cmd\": [\"sh\"], \"User\": \"www-data\"}"
image k8s-staging-cri-tools/test-image-user-uid-group:latest "$bb" "{$path, \"Cmd\": [\"sh\"], \"User\": \"1003:users\"}"
image k8s-staging-cri-tools/test-image-user-username-group:latest "$bb" "{$path, \"Cmd\": [\"sh\"], \"User\": \"www-data:www-data\"}"
cp -a "$bb" "$work/predefined"
echo 'default-user:x:1000:1000::/home:/bin/sh' >>"$work/predefined/etc/passwd"
printf 'default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n' >>"$work/predefined/etc/group"
image k8s-staging-cri-tools/test-image-predefined-group:latest "$work/predefined" "{$path, \"Cmd\": [\"sh\"], \"User\": \"1000\"}"

# Images that differ in one file, and one image with three tags.
for n in test-image-latest:latest test-image-tag:test test-image-tag:all test-image-1:latest test-image-2:latest test-image-3:latest; do
  with "$bb" test "$n"
  image "k8s-staging-cri-tools/$n" "$work/with" "{$path, \"Cmd\": [\"sh\"]}"
done
with "$bb" test test-image-tags
for n in 1 2 3; do image "k8s-staging-cri-tools/test-image-tags:$n" "$work/with" "{$path, \"Cmd\": [\"sh\"]}"; done

# By digest: nothing but one text. README.md builds critest with its digest.
mkdir "$work/digest" && echo test-image-digest >"$work/digest/test" && chmod 755 "$work/digest" && chmod 644 "$work/digest/test"
image k8s-staging-cri-tools/test-image-digest:latest "$work/digest"
image library/busybox:digest "$work/digest" # for critest of 2017
with "$bb" test pause
image pause:3.9 "$work/with" "{$path, \"Cmd\": [\"sleep\", \"infinity\"]}"

# nginx on port 80 and, on the node's network, on port 12003.
for p in nginx nginx-common libpcre2-8-0 libssl3 zlib1g libcrypt1; do package "$p" "$work/nginx"; done
cp -a "$bb" "$work/web"
libs="$work/nginx/usr/lib/x86_64-linux-gnu:$work/nginx/lib/x86_64-linux-gnu" program "$work/web" "$work/nginx/usr/sbin/nginx" /usr/sbin/nginx
mkdir -p "$work/web"/{etc/nginx,var/log/nginx,var/lib/nginx,usr/share/nginx/html}
cp "$work/nginx/usr/share/nginx/html/index.html" "$work/web/usr/share/nginx/html/"
for port in 80 12003; do
  cat >"$work/web/etc/nginx/nginx.conf" <<E
user www-data;
pid /var/run/nginx.pid;
error_log /dev/stderr;
events {}
http {
  access_log /dev/stdout;
  server {
    listen $port;
    root /usr/share/nginx/html;
  }
}
E
  case $port in 80) n=e2e-test-images/nginx:1.14-2 ;; *) n=k8s-staging-cri-tools/hostnet-nginx-amd64:latest ;; esac
  image "$n" "$work/web" "{$path, \"Cmd\": [\"nginx\", \"-g\", \"daemon off;\"], \"StopSignal\": \"SIGQUIT\"}"
done

# The names of 2017: critest of that time takes them from docker.io.
for n in 1.26 1.26.2 latest; do image library/busybox:$n "$full" "{$path, \"Cmd\": [\"sh\"]}"; done
for n in 1-glibc 1-musl 1-uclibc 1; do # the last two are one image
  [ $n = 1 ] || with "$bb" test "$n"
  image "library/busybox:$n" "$work/with" "{$path, \"Cmd\": [\"sh\"]}"
done
sed -i 's/listen 12003;/listen 80;/' "$work/web/etc/nginx/nginx.conf"
image library/nginx:latest "$work/web" "{$path, \"Cmd\": [\"nginx\", \"-g\", \"daemon off;\"], \"StopSignal\": \"SIGQUIT\"}"
sed -i 's/listen 80;/listen 12003;/' "$work/web/etc/nginx/nginx.conf"

# A web server that says httpd.
mkdir -p "$work/httpd" && cp -a "$bb/." "$work/httpd"
mkdir -p "$work/httpd/www" && echo '<html><body><h1>It works!</h1></body></html>' >"$work/httpd/www/index.html"
image e2e-test-images/httpd:2.4.39-4 "$work/httpd" "{$path, \"Cmd\": [\"sh\", \"-c\", \"echo httpd starts; exec httpd -f -vv -p 80 -h /www\"]}"

# A set-user-ID program.
mkdir "$work/setuid"
CGO_ENABLED=0 go build -trimpath -ldflags='-s -w -buildid=' -o "$work/setuid/nnp" "$here/nonewprivs"
chmod 4755 "$work/setuid/nnp"
image e2e-test-images/nonewprivs:1.3 "$work/setuid" '{"Entrypoint": ["/nnp"], "User": "1000"}'
image google_containers/nonewprivs:1.2 "$work/setuid" '{"Entrypoint": ["/nnp"], "User": "1000"}'

# Further images of containerd's suite. Its pause says nothing and ends at once
# on a signal.
cp -a "$bb" "$work/pausing"
cat >"$work/pausing/pause" <<'E'
#!/bin/sh
trap 'exit 0' TERM INT
while :; do sleep 3600 & wait; done
E
chmod 755 "$work/pausing/pause"
image pause:3.10.2 "$work/pausing" "{$path, \"Entrypoint\": [\"/pause\"]}"
cp -a "$bb" "$work/wheel"
echo 'wheel:x:10:root' >>"$work/wheel/etc/group" # a case needs root's groups
image containerd/busybox:1.36 "$work/wheel" "{$path, \"Cmd\": [\"sh\"]}"
sed -i 's|error_log /dev/stderr;|error_log /dev/stderr notice;|' "$work/web/etc/nginx/nginx.conf" # says when it has started
image containerd/nginx:1.27.0 "$work/web" "{$path, \"Cmd\": [\"nginx\", \"-g\", \"daemon off;\"], \"StopSignal\": \"SIGQUIT\"}"

# Its shell is a link that leads out of bin.
cp -a "$bb" "$work/alpine"
ln -sf /bin/busybox "$work/alpine/bin/sh"
printf 'NAME="Alpine Linux"\nID=alpine\n' >"$work/alpine/etc/os-release"
image containerd/alpine:3.14.0 "$work/alpine" "{$path, \"Cmd\": [\"/bin/sh\"]}"

# A program that takes a given amount of memory.
package stress "$work/stress"
cp -a "$bb" "$work/consumer"
program "$work/consumer" "$work/stress/usr/bin/stress" /usr/bin/stress
image e2e-test-images/resource-consumer:1.10 "$work/consumer" "{$path, \"Cmd\": [\"sleep\", \"3600\"]}"

# Volumes with content: two have a colon in their names, and one is not root's.
cp -a "$bb" "$work/volumes"
for v in test_dir/test_file C:/weird_test_dir/weird_test_file :colon_prefixed/colon_prefixed_file; do
  mkdir -p "$work/volumes/${v%/*}"
  echo test_content >"$work/volumes/$v"
done
image containerd/volume-copy-up:2.2 "$work/volumes" "{$path, \"Cmd\": [\"sh\"], \"Volumes\": {\"/test_dir\": {}, \"C:/weird_test_dir\": {}, \"/:colon_prefixed\": {}}}"
cp -a "$bb" "$work/owned"
echo 'nogroup:x:65534:' >>"$work/owned/etc/group"
mkdir "$work/owned/test_dir"
chown 65534:65534 "$work/owned/test_dir"
image containerd/volume-ownership:2.1 "$work/owned" "{$path, \"Cmd\": [\"sh\"], \"Volumes\": {\"/test_dir\": {}}}" owned
