package ocispec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// The options of a bind mount that change its SELinux labels: to a label for all containers, or to the container's own.
const (
	RelabelShared  = "z"
	RelabelPrivate = "Z"
)

// TakeRelabels removes the options z and Z from the mounts of s, which no runtime knows, and returns the mounts that
// had one.
func TakeRelabels(s *specs.Spec) (list []core.Relabel) {
	for i, m := range s.Mounts {
		options := slices.DeleteFunc(slices.Clone(m.Options), func(o string) bool { return o == RelabelShared || o == RelabelPrivate })
		if len(options) < len(m.Options) {
			list = append(list, core.Relabel{Path: m.Source, Private: slices.Contains(m.Options, RelabelPrivate)})
			s.Mounts[i].Options = options
		}
	}
	return list
}

// ParseSELinux reads the labels that options of docker's ask for, such as type:spc_t. nil are none: disable. InvalidArgument.
func ParseSELinux(options []string) (*core.SELinux, error) {
	var ask core.SELinux
	for _, o := range options {
		name, value, ok := strings.Cut(o, ":")
		to := map[string]*string{"user": &ask.User, "role": &ask.Role, "type": &ask.Type, "level": &ask.Level, "filetype": &ask.FileType}[name]
		switch {
		case o == "disable":
			if len(options) > 1 {
				return nil, fmt.Errorf("the SELinux label disable excludes the others: %w", errdefs.ErrInvalidArgument)
			}
			return nil, nil //nolint:nilnil // absent is a value here
		case !ok || to == nil || value == "":
			return nil, fmt.Errorf("the SELinux label %q is none of disable, user:, role:, type:, level:, filetype: with a value: %w", o, errdefs.ErrInvalidArgument)
		case strings.ContainsAny(value, " \x00\n") || name != "level" && strings.Contains(value, ":"):
			return nil, fmt.Errorf("the SELinux label %q has a separator in its value: %w", o, errdefs.ErrInvalidArgument)
		}
		*to = value
	}
	return &ask, nil
}
