package ocispec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxUserFile bounds the size of a container's passwd and group.
const maxUserFile = 4 << 20

// UserFiles are a root's /etc/passwd and /etc/group; nil when it has none.
type UserFiles struct{ Passwd, Group []byte }

// ReadUserFiles reads them inside root, which is never left: an absolute
// symlink leads to where it would lead in the container.
func ReadUserFiles(root *os.Root) (UserFiles, error) {
	var f UserFiles
	if root == nil {
		return f, nil
	}
	var err error
	if f.Passwd, err = readInside(root, "etc/passwd"); err != nil {
		return f, err
	}
	f.Group, err = readInside(root, "etc/group")
	return f, err
}

func readInside(root *os.Root, name string) ([]byte, error) {
	path := name
	for range 40 {
		if target, err := root.Readlink(path); err == nil && strings.HasPrefix(target, "/") {
			path = strings.TrimLeft(target, "/")
			continue
		}
		// Not a FIFO that nobody writes to, nor a device.
		f, err := root.OpenFile(path, os.O_RDONLY|nonblock, 0)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read /%s in the container's root: %w: %w", name, err, errdefs.ErrInvalidArgument)
		}
		st, err := f.Stat()
		if err == nil && !st.Mode().IsRegular() {
			err = errdefs.ErrInvalidArgument
		}
		var b []byte
		if err == nil {
			b, err = io.ReadAll(io.LimitReader(f, maxUserFile))
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("read /%s in the container's root: no plain file: %w", name, err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("read /%s in the container's root: too many symlinks: %w", name, errdefs.ErrInvalidArgument)
}

// User is a process's user.
type User struct {
	specs.User
	Home string // "/" when the passwd file does not say
	Name string // "" when the passwd file does not say
}

// LookUp resolves "", "uid", "name", each with ":gid" or ":group", against the files; "" is root.
// The additional groups are those that list the user in the group file, unless the text has a
// group. InvalidArgument for an unknown name, with the searched file; a number need not be in the
// files.
func (f UserFiles) LookUp(spec string) (User, error) {
	u, err := user.GetExecUser(spec, &user.ExecUser{Home: "/"}, bytes.NewReader(f.Passwd), bytes.NewReader(f.Group))
	if errors.Is(err, user.ErrNoPasswdEntries) {
		name, _, _ := strings.Cut(spec, ":")
		return User{}, fmt.Errorf("unknown user %s: no matching entry in %s: %w", name, f.places(), errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return User{}, fmt.Errorf("user %q: %w in %s: %w", spec, err, f.places(), errdefs.ErrInvalidArgument)
	}
	// The last ID means "unchanged" to the kernel.
	if !validID(int64(u.Uid)) || !validID(int64(u.Gid)) {
		return User{}, fmt.Errorf("user %q: ids %d:%d are out of range: %w", spec, u.Uid, u.Gid, errdefs.ErrInvalidArgument)
	}
	out := User{User: specs.User{UID: uint32(u.Uid), GID: uint32(u.Gid)}, Home: u.Home}
	if out.Home == "" {
		out.Home = "/"
	}
	out.Name = f.name(u.Uid)
	out.AddGroup(out.GID)
	for _, g := range u.Sgids {
		if validID(int64(g)) {
			out.AddGroup(uint32(g))
		}
	}
	return out, nil
}

// ByID is LookUp for a number, which stands for itself when the files do not have it.
func (f UserFiles) ByID(uid uint32) (User, error) {
	return f.LookUp(strconv.FormatUint(uint64(uid), 10))
}

func (f UserFiles) places() string {
	switch {
	case f.Passwd == nil && f.Group == nil:
		return "/etc/passwd and /etc/group of the root, which are both missing"
	case f.Passwd == nil:
		return "/etc/passwd and /etc/group of the root; the first is missing"
	case f.Group == nil:
		return "/etc/passwd and /etc/group of the root; the second is missing"
	default:
		return "/etc/passwd and /etc/group of the root"
	}
}

func (f UserFiles) name(uid int) string {
	users, err := user.ParsePasswdFilter(bytes.NewReader(f.Passwd), func(u user.User) bool { return u.Uid == uid })
	if err != nil || len(users) == 0 {
		return ""
	}
	return users[0].Name
}

// MemberOf lists the groups that name the user with this uid.
func (f UserFiles) MemberOf(uid uint32) []uint32 {
	name := f.name(int(uid))
	if name == "" {
		return nil
	}
	groups, err := user.ParseGroupFilter(bytes.NewReader(f.Group), func(g user.Group) bool { return slices.Contains(g.List, name) })
	if err != nil {
		return nil
	}
	var out []uint32
	for _, g := range groups {
		if validID(int64(g.Gid)) {
			out = append(out, uint32(g.Gid))
		}
	}
	return out
}

// GroupID resolves a group by number or name.
func (f UserFiles) GroupID(group string) (uint32, error) {
	if n, err := strconv.ParseInt(group, 10, 64); err == nil {
		if !validID(n) {
			return 0, fmt.Errorf("group %q is out of range: %w", group, errdefs.ErrInvalidArgument)
		}
		return uint32(n), nil
	}
	groups, err := user.ParseGroupFilter(bytes.NewReader(f.Group), func(g user.Group) bool { return g.Name == group })
	if err != nil || len(groups) == 0 || !validID(int64(groups[0].Gid)) {
		return 0, fmt.Errorf("group %q: not found in /etc/group of the root: %w", group, errdefs.ErrInvalidArgument)
	}
	return uint32(groups[0].Gid), nil
}

// AddGroup adds an additional group unless the user has it.
func (u *User) AddGroup(gid uint32) {
	if !slices.Contains(u.AdditionalGids, gid) {
		u.AdditionalGids = append(u.AdditionalGids, gid)
	}
}

func validID(id int64) bool { return id >= 0 && id < math.MaxUint32 }
