package cri

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxUserFile bounds what is read of a container's passwd and group.
const maxUserFile = 4 << 20

// userFiles are the contents of a root's /etc/passwd and /etc/group; empty ones
// when there are none.
type userFiles struct{ passwd, group []byte }

func readUserFiles(root *os.Root) (f userFiles, err error) {
	if f.passwd, err = readInside(root, "etc/passwd"); err != nil {
		return f, err
	}
	f.group, err = readInside(root, "etc/group")
	return f, err
}

// readInside follows absolute symlinks as the container would: from its own
// root.
func readInside(root *os.Root, name string) ([]byte, error) {
	for range 16 {
		if target, err := root.Readlink(name); err == nil && strings.HasPrefix(target, "/") {
			name = strings.Trim(target, "/")
			continue
		}
		f, err := root.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, invalid("/%s: %v", name, err)
		}
		b, err := io.ReadAll(io.LimitReader(f, maxUserFile))
		return b, errors.Join(err, f.Close())
	}
	return nil, invalid("/%s: too many symlinks", name)
}

// checkUser refuses what the API forbids.
func checkUser(sc *v1.LinuxContainerSecurityContext) error {
	hasUser := sc.GetRunAsUser() != nil || sc.GetRunAsUsername() != ""
	switch {
	case sc.GetRunAsUser() != nil && sc.GetRunAsUsername() != "":
		return invalid("container: both run_as_user and run_as_username")
	case sc.GetRunAsGroup() != nil && !hasUser:
		return invalid("container: run_as_group without a user")
	case !validID(sc.GetRunAsUser().GetValue()) || !validID(sc.GetRunAsGroup().GetValue()):
		return invalid("container: run_as_user %d, run_as_group %d", sc.GetRunAsUser().GetValue(), sc.GetRunAsGroup().GetValue())
	}
	for _, g := range sc.GetSupplementalGroups() {
		if !validID(g) {
			return invalid("container: supplemental group %d", g)
		}
	}
	return nil
}

// validID: the last one means "unchanged" to the kernel.
func validID(id int64) bool { return id >= 0 && id < math.MaxUint32 }

// userSpec is user[:group] as asked for, else as the image says.
func userSpec(sc *v1.LinuxContainerSecurityContext, image string) string {
	spec := sc.GetRunAsUsername()
	if u := sc.GetRunAsUser(); u != nil {
		spec = strconv.FormatInt(u.GetValue(), 10)
	}
	if spec == "" {
		return image
	}
	if g := sc.GetRunAsGroup(); g != nil {
		spec += ":" + strconv.FormatInt(g.GetValue(), 10)
	}
	return spec
}

// lookUp resolves a user inside the root and joins the groups that the policy
// says: the group file's and the asked ones, or the asked ones alone. The
// primary group is always the first.
func lookUp(sc *v1.LinuxContainerSecurityContext, spec string, files userFiles) (specs.User, string, error) {
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(files.passwd), bytes.NewReader(files.group))
	if err != nil {
		return specs.User{}, "", invalid("user %q: %v", spec, err)
	}
	if !validID(int64(u.Uid)) || !validID(int64(u.Gid)) {
		return specs.User{}, "", invalid("user %q: ids %d:%d", spec, u.Uid, u.Gid)
	}
	out := specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid), AdditionalGids: []uint32{uint32(u.Gid)}}
	add := func(g uint32) {
		if !slices.Contains(out.AdditionalGids, g) {
			out.AdditionalGids = append(out.AdditionalGids, g)
		}
	}
	if sc.GetSupplementalGroupsPolicy() == v1.SupplementalGroupsPolicy_Merge {
		for _, g := range memberOf(u.Uid, files) {
			add(g)
		}
	}
	for _, g := range sc.GetSupplementalGroups() {
		add(uint32(g))
	}
	return out, u.Home, nil
}

// memberOf are the groups that list a user by its name.
func memberOf(uid int, files userFiles) (gids []uint32) {
	users, err := user.ParsePasswdFilter(bytes.NewReader(files.passwd), func(u user.User) bool { return u.Uid == uid })
	if err != nil || len(users) == 0 {
		return nil
	}
	groups, err := user.ParseGroupFilter(bytes.NewReader(files.group), func(g user.Group) bool { return slices.Contains(g.List, users[0].Name) })
	if err != nil {
		return nil
	}
	for _, g := range groups {
		if validID(int64(g.Gid)) {
			gids = append(gids, uint32(g.Gid))
		}
	}
	return gids
}

func statusUser(u specs.User) *v1.ContainerUser {
	l := &v1.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.AdditionalGids {
		l.SupplementalGroups = append(l.SupplementalGroups, int64(g))
	}
	return &v1.ContainerUser{Linux: l}
}
