# shellcheck shell=bash
# Sourced by the scripts that make roots of Debian packages. Packages are resolved by
# apt against an empty status file and only unpacked: no maintainer script runs,
# nothing is installed on this machine, and the lists and archives are kept apart
# from its own.

# resolver makes the directory $apt with fresh lists, and sets $options for apt.
resolver() { # directory
  mkdir -p "$1"
  apt=$(cd "$1" && pwd)
  local mirror=${LONGSHORE_DEBIAN_MIRROR:-http://deb.debian.org} signed=/usr/share/keyrings/debian-archive-keyring.gpg
  mkdir -p "$apt/lists/partial" "$apt/archives/partial"
  : >"$apt/status"
  cat >"$apt/sources.list" <<END
deb [signed-by=$signed] $mirror/debian bookworm main
deb [signed-by=$signed] $mirror/debian bookworm-updates main
deb [signed-by=$signed] $mirror/debian-security bookworm-security main
END
  options=(-qq -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
    -o Dir::Cache="$apt" -o Dir::Cache::archives="$apt/archives"
    -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
    -o APT::Architecture="${LONGSHORE_VM_ARCH:-amd64}" -o APT::Architectures="${LONGSHORE_VM_ARCH:-amd64}" -o APT::Sandbox::User=root -o APT::Install-Recommends=0 -o Debug::NoLocking=1)
  apt-get "${options[@]}" update
}

# download fetches packages, and those that they need, to $apt/archives.
download() { # package…
  apt-get "${options[@]}" install -y --download-only "$@" >/dev/null
}

# bare makes the directories of a root whose /usr is merged.
bare() { # root
  mkdir -p "$1"/usr/{bin,sbin,lib,lib64} "$1"/{dev,proc,sys,run,root}
  local d
  for d in bin sbin lib lib64; do ln -s "usr/$d" "$1/$d"; done
}

# unpack follows the merged /usr (bin is a link), which plain dpkg -x would replace.
unpack() { dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" --keep-directory-symlink; }
