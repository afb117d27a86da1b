package cri

import (
	"math"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
)

// checkUser refuses combinations that the API forbids.
func checkUser(sc *v1.LinuxContainerSecurityContext) error {
	hasUser := sc.GetRunAsUser() != nil || sc.GetRunAsUsername() != ""
	switch {
	case sc.GetRunAsUser() != nil && sc.GetRunAsUsername() != "":
		return invalid.Errorf("container: both run_as_user and run_as_username")
	case sc.GetRunAsGroup() != nil && !hasUser:
		return invalid.Errorf("container: run_as_group without a user")
	case !validID(sc.GetRunAsUser().GetValue()) || !validID(sc.GetRunAsGroup().GetValue()):
		return invalid.Errorf("container: run_as_user %d, run_as_group %d", sc.GetRunAsUser().GetValue(), sc.GetRunAsGroup().GetValue())
	}
	for _, g := range sc.GetSupplementalGroups() {
		if !validID(g) {
			return invalid.Errorf("container: supplemental group %d", g)
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
func lookUp(sc *v1.LinuxContainerSecurityContext, spec string, files ocispec.UserFiles) (ocispec.User, error) {
	u, err := files.LookUp(spec)
	if err != nil {
		return u, err
	}
	u.AdditionalGids = []uint32{u.GID}
	if sc.GetSupplementalGroupsPolicy() == v1.SupplementalGroupsPolicy_Merge {
		for _, g := range files.MemberOf(u.UID) {
			u.AddGroup(g)
		}
	}
	for _, g := range sc.GetSupplementalGroups() {
		u.AddGroup(uint32(g))
	}
	return u, nil
}

func statusUser(u specs.User) *v1.ContainerUser {
	l := &v1.LinuxContainerUser{Uid: int64(u.UID), Gid: int64(u.GID)}
	for _, g := range u.AdditionalGids {
		l.SupplementalGroups = append(l.SupplementalGroups, int64(g))
	}
	return &v1.ContainerUser{Linux: l}
}
