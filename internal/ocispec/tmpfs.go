package ocispec

import (
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
	number, letters := value, ""
	if i := strings.IndexFunc(value, func(r rune) bool { return r < '0' || r > '9' }); i >= 0 {
		number, letters = value[:i], value[i:]
	}
	switch name {
	case "size":
		return digits(number, 19) && (letters == "" || len(letters) == 1 && strings.Contains("kKmMgG%", letters))
	case "nr_blocks", "nr_inodes":
		return digits(number, 19) && (letters == "" || len(letters) == 1 && strings.Contains("kKmMgG", letters))
	case "mode":
		return digits(value, 5) && !strings.ContainsAny(value, "89")
	case "uid", "gid":
		return digits(value, 10)
	case "huge":
		return slices.Contains([]string{"never", "always", "within_size", "advise"}, value)
	case "mpol":
		return value != "" && len(value) <= 64 && !strings.ContainsFunc(value, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("=:,-", r)
		})
	}
	return false
}

// digits reports whether s is 1 to limit decimal digits.
func digits(s string, limit int) bool {
	return s != "" && len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}
