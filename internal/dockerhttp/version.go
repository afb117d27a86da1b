package dockerhttp

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/longshore/longshore/internal/invalid"
)

// Version is a version of the Engine API. The zero Version is none.
type Version struct{ Major, Minor int }

// ParseVersion reads a version such as 1.51.
func ParseVersion(text string) (Version, error) {
	major, minor, _ := strings.Cut(text, ".")
	x, err := strconv.ParseUint(major, 10, 15)
	y, err2 := strconv.ParseUint(minor, 10, 15)
	if err != nil || err2 != nil {
		return Version{}, invalid.Errorf("invalid API version %.20q", text)
	}
	return Version{int(x), int(y)}, nil
}

// MustParse is ParseVersion for constants. It panics if text is no version.
func MustParse(text string) Version {
	v, err := ParseVersion(text)
	if err != nil {
		panic(err)
	}
	return v
}

// Less reports whether v is older than w.
func (v Version) Less(w Version) bool {
	return v.Major < w.Major || v.Major == w.Major && v.Minor < w.Minor
}

// Before reports whether v is older than a version such as "1.44". It panics if text is no version.
func (v Version) Before(text string) bool { return v.Less(MustParse(text)) }

// String implements fmt.Stringer.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// Range is the versions that a server answers.
type Range struct{ Min, Max Version }

// check returns InvalidArgument, with dockerd's text, for a version that is not in the range.
func (r Range) check(v Version) error {
	switch {
	case v.Less(r.Min):
		return invalid.Errorf("client version %v is too old. Minimum supported API version is %v, please upgrade your client to a newer version", v, r.Min)
	case r.Max.Less(v):
		return invalid.Errorf("client version %v is too new. Maximum supported API version is %v", v, r.Max)
	}
	return nil
}

// Cut cuts the version from a path such as /v1.51/info. Without one the version is the highest. It returns InvalidArgument, and the
// version, for one that is not in the range.
func (r Range) Cut(path string) (v Version, rest string, err error) {
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	if len(first) < 2 || first[0] != 'v' || strings.Trim(first[1:], "0123456789.") != "" {
		return r.Max, path, nil
	}
	if v, err = ParseVersion(first[1:]); err == nil {
		err = r.check(v)
	}
	return v, "/" + rest, err
}
