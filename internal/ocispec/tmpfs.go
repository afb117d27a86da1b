package ocispec

import (
	"regexp"
	"slices"
	"strings"
)

// TmpfsOption reports whether a request may give a tmpfs this option, "noexec" or "size=64m":
// flags, sizes and owners, and nothing that mounts something else.
func TmpfsOption(option string) bool {
	name, value, ok := strings.Cut(option, "=")
	if !ok {
		return slices.Contains([]string{
			"exec", "noexec", "suid", "nosuid", "dev", "nodev", "ro", "rw", "sync", "async", "dirsync", "atime", "noatime", "diratime", "nodiratime",
			"relatime", "norelatime", "strictatime", "nostrictatime", "defaults", "noswap", "inode32", "inode64",
		}, name)
	}
	pattern := map[string]string{
		"size": `^[0-9]{1,19}[kKmMgG%]?$`, "nr_blocks": `^[0-9]{1,19}[kKmMgG]?$`, "nr_inodes": `^[0-9]{1,19}[kKmMgG]?$`, "mode": `^[0-7]{1,5}$`,
		"uid": `^[0-9]{1,10}$`, "gid": `^[0-9]{1,10}$`, "huge": `^(never|always|within_size|advise)$`, "mpol": `^[a-z0-9=:,-]{1,64}$`,
	}[name]
	return pattern != "" && regexp.MustCompile(pattern).MatchString(value)
}
