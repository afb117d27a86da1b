package arch_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reachWorkloads are the packages that open, make or mount what is named by a path,
// and may be told one of which a workload owns a part.
var reachWorkloads = []string{
	"internal/control", "internal/engine", "internal/face", "internal/inroot", "internal/keeper/stdio", "internal/logs", "internal/rootfs", "internal/runtime/oci", "internal/solo", "internal/volume",
}

// byName are the functions that take a path and would follow a link in it.
var byName = map[string][]string{
	"os": {
		"Open", "OpenFile", "OpenRoot", "Create", "Mkdir", "MkdirAll", "Remove", "RemoveAll", "Rename", "Chown", "Lchown", "Chmod", "Chtimes", "ReadFile",
		"WriteFile", "Stat", "Lstat", "Symlink", "Link", "ReadDir", "Truncate", "CopyFS", "DirFS", "Chdir",
	},
	"path/filepath": {"EvalSymlinks", "Walk", "WalkDir", "Glob"},
	"golang.org/x/sys/unix": {
		"Open", "Openat", "Openat2", "Creat", "Mkdir", "Mkdirat", "Mkfifo", "Mkfifoat", "Mknod", "Mknodat", "Mount", "MoveMount", "OpenTree", "MountSetattr",
		"Unmount", "Chown", "Lchown", "Fchownat", "Chmod", "Fchmodat", "Unlink", "Unlinkat", "Rename", "Renameat", "Renameat2", "Symlink", "Symlinkat", "Link",
		"Linkat", "Stat", "Lstat", "Fstatat", "Statx", "Statfs", "Truncate", "InotifyAddWatch", "Setxattr", "Lsetxattr",
	},
}

// What the paths are that the functions in allowedByName are called with.
const (
	ownFiles      = "in a directory of the agent's, which only root can change"
	kernels       = "a file of the kernel's"
	operators     = "named by the operator, or by a caller of the control API, who is root"
	orchestrators = "named by the orchestrator, which may name any path of the node"
	byDir         = "a name in a directory that is open; a link there is not followed, or an os.Root keeps it inside"
	inRoots       = "in a root file system that is mounted, by os.Root or openat2"
	ofSandbox     = "a standalone sandbox, whose parent is root's, with O_NOFOLLOW"
)

// allowedByName are the functions that may call those of byName, with what their
// paths are. All others open a path by internal/beneath, or in an os.Root that it
// returned: a workload may have put a link in the place of any component it owns.
// Before adding one, find out who could rename the components of its path.
var allowedByName = map[string]string{
	"internal/engine/networks/egress.go:same":                   orchestrators + "; only compared with the pins of namespaces",
	"internal/control/egress.go:egressLog":                      ownFiles,
	"internal/engine/networks/attach.go:Refresh":                ownFiles,
	"internal/face/cri/secprofile/store.go:Open":                ownFiles,
	"internal/face/cri/secprofile/store.go:load":                ownFiles,
	"internal/face/cri/secprofile/store.go:read":                ownFiles,
	"internal/face/cri/secprofile/store.go:Remove":              ownFiles,
	"internal/engine/boot/boot.go:mount":                        ownFiles, // bundles, and roots that nothing runs in
	"internal/engine/networks/attach.go:replace":                kernels,  // what beneath.Open has opened, in /proc/self/fd
	"internal/engine/users/users.go:mappable":                   ownFiles + ", or any path: the copy of its mount is only tried, and nothing opens files of it",
	"internal/engine/users/users.go:mountOf":                    ownFiles + ", or any path: the copy of its mount is only tried, and nothing opens files of it",
	"internal/engine/users/users.go:ofKernel":                   ownFiles + ", or any path: only its file system is asked for",
	"internal/inroot/inroot.go:inMounts":                        ownFiles,
	"internal/inroot/inroot.go:mountIn":                         byDir,
	"internal/inroot/inroot.go:rootOf":                          kernels,
	"internal/solo/changes.go:limitsOf":                         ownFiles,
	"internal/logs/driver/stream.go:config":                     operators + ", or " + orchestrators,
	"internal/logs/ship/follower.go:newFollower":                ownFiles,
	"internal/logs/ship/follower.go:store":                      ownFiles,
	"internal/logs/ship/ship.go:Open":                           ownFiles,
	"internal/logs/ship/ship.go:Run":                            ownFiles,
	"internal/logs/ship/ship.go:clean":                          ownFiles,
	"internal/logs/ship/ship.go:forget":                         ownFiles,
	"internal/solo/translate/create.go:checkMounts":             operators,
	"internal/solo/translate/blockio.go:blockDevice":            operators,
	"internal/solo/create.go:containerConfig":                   ownFiles,
	"internal/control/inspect.go:inspectContainer":              ownFiles,
	"internal/control/shown.go:layers":                          kernels,
	"internal/control/listen.go:listenUnix":                     operators,
	"internal/control/listen.go:removeSocket":                   operators,
	"internal/control/listen.go:allowSearch":                    operators,
	"internal/solo/translate/exec.go:execUser":                  inRoots,
	"internal/solo/ends.go:Recover":                             ownFiles,
	"internal/solo/ends.go:removeLogFiles":                      ownFiles,
	"internal/face/docker/create.go:sources":                    operators,
	"internal/face/kata/container.go:heedless":                  kernels,
	"internal/face/kata/user.go:filesOf":                        kernels,
	"internal/face/swarm/csi/files.go:prepare":                  ownFiles,
	"internal/face/swarm/csi/files.go:write":                    ownFiles,
	"internal/face/swarm/csi/files.go:read":                     ownFiles,
	"internal/face/swarm/csi/files.go:remove":                   ownFiles,
	"internal/face/swarm/files.go:mount":                        ownFiles,
	"internal/face/swarm/files.go:mountTmpfs":                   ownFiles,
	"internal/face/swarm/files.go:mounted":                      ownFiles,
	"internal/face/swarm/files.go:unmount":                      ownFiles,
	"internal/face/swarm/files.go:write":                        ownFiles,
	"internal/face/swarm/files.go:of":                           ownFiles,
	"internal/face/swarm/files.go:remove":                       ownFiles,
	"internal/face/swarm/files.go:others":                       ownFiles,
	"internal/face/swarm/identity/identity.go:Load":             ownFiles,
	"internal/face/swarm/publish/position.go:readKept":          ownFiles,
	"internal/face/swarm/swarm.go:Join":                         ownFiles,
	"internal/face/swarm/swarm.go:load":                         ownFiles,
	"internal/face/swarm/swarm.go:clear":                        ownFiles,
	"internal/face/swarm/task.go:createPair":                    orchestrators,
	"internal/face/swarm/translate/mounts.go:WithoutDocker":     orchestrators,
	"internal/face/nomad/translate/paths.go:makeDir":            orchestrators, // outside of the allocation's directory, where the operator permits it
	"internal/face/swarm/task.go:removeLogs":                    ownFiles,
	"internal/face/swarm/task.go:sweep":                         ownFiles,
	"internal/engine/changes/changes.go:store":                  ownFiles,
	"internal/engine/create.go:root":                            inRoots,
	"internal/engine/renew.go:newRenewal":                       ownFiles,
	"internal/engine/etc/etc.go:Renew":                          inRoots,
	"internal/engine/owned/rest.go:Rest":                        ownFiles,
	"internal/inroot/inroot.go:makeTarget":                      inRoots, // one name in a directory that beneath has opened
	"internal/engine/etc/etc.go:Files":                          ownFiles,
	"internal/engine/dirs.go:makeBundle":                        ownFiles,
	"internal/engine/survey/paths.go:dirIDs":                    ownFiles,
	"internal/engine/dirs.go:removeBundle":                      ownFiles,
	"internal/engine/etc/etc.go:Save":                           ownFiles,
	"internal/engine/etc/etc.go:Remove":                         ownFiles,
	"internal/engine/etc/etc.go:Share":                          ownFiles,
	"internal/engine/etc/etc.go:Shared":                         ownFiles,
	"internal/engine/etc/etc.go:Write":                          ownFiles,
	"internal/engine/teardown.go:sandboxDir":                    ownFiles,
	"internal/engine/teardown.go:unmountShm":                    ownFiles,
	"internal/engine/volumes/fill.go:fill":                      ownFiles,
	"internal/engine/volumes/volumes.go:mounted":                ownFiles,
	"internal/engine/volumes/volumes.go:release":                ownFiles,
	"internal/engine/volumes/volumes.go:unmount":                ownFiles,
	"internal/engine/volumes/images.go:Clear":                   ownFiles,
	"internal/engine/volumes/images.go:Mount":                   ownFiles,
	"internal/engine/volumes/images.go:Release":                 ownFiles,
	"internal/engine/volumes/images.go:below":                   inRoots,
	"internal/engine/sandbox.go:files":                          ownFiles,
	"internal/face/cri/loopback.go:dialLoopback":                ownFiles,
	"internal/face/cri/containers.go:makeLogDir":                orchestrators,
	"internal/face/cri/alpha/images.go:storage":                 kernels,
	"internal/face/cri/alpha/paths.go:NewPaths":                 operators,
	"internal/face/cri/alpha/paths.go:Find":                     operators,
	"internal/face/cri/containers.go:mountSources":              orchestrators,
	"internal/face/cri/nri/nri.go:Run":                          operators,
	"internal/face/cri/rights.go:readSeccomp":                   orchestrators,
	"internal/face/cri/sandboxes.go:run":                        orchestrators,
	"internal/face/cri/podcheckpoint/continue.go:open":          orchestrators,
	"internal/face/cri/podcheckpoint/podcheckpoint.go:emptyDir": orchestrators,
	"internal/face/cri/podcheckpoint/podcheckpoint.go:restore":  orchestrators,
	"internal/face/mesos/auth/auth.go:readPrivate":              operators,
	"internal/face/mesos/config.go:rules":                       operators,
	"internal/face/mesos/fetch/cache.go:NewCache":               ownFiles,
	"internal/face/mesos/mesos.go:start":                        ownFiles,
	"internal/face/mesos/fetch/fetch.go:openAllowed":            operators,
	"internal/face/mesos/fetch/store/main.go:do":                byDir,
	"internal/face/mesos/fetch/store/main.go:source":            byDir,
	"internal/face/mesos/providers/providers.go:New":            ownFiles,
	"internal/face/mesos/providers/providers.go:Remove":         ownFiles,
	"internal/face/mesos/providers/providers.go:Update":         ownFiles,
	"internal/face/mesos/providers/providers.go:read":           ownFiles,
	"internal/face/docker/system/info.go:descriptors":           kernels,
	"internal/face/mesos/sandbox/sandbox.go:New":                operators,
	"internal/face/mesos/sandbox/usage.go:Usage":                ofSandbox,
	"internal/face/mesos/sandbox/usage.go:add":                  byDir,
	"internal/face/mesos/view/machine.go:MachineResources":      ownFiles,
	"internal/face/nomad/stats/speed.go:NodeSpeed":              kernels,
	"internal/face/nomad/relay/relay.go:listen":                 ownFiles,
	"internal/face/nomad/translate/cgroup.go:isDir":             kernels,
	"internal/face/nomad/translate/exec.go:userFiles":           operators,
	"internal/face/nomad/translate/sandbox.go:NamespaceOf":      orchestrators,
	"internal/face/nomad/translate/spec.go:filter":              operators,
	"internal/keeper/stdio/journal.go:OpenJournal":              ownFiles,
	"internal/keeper/stdio/numbered.go:nextNumber":              byDir,
	"internal/keeper/stdio/sink.go:Open":                        byDir,
	"internal/keeper/stdio/sink.go:openIf":                      byDir,
	"internal/keeper/stdio/sink.go:rotate":                      byDir,
	"internal/logs/logs.go:openDir":                             ownFiles,
	"internal/logs/watch.go:add":                                byDir,
	"internal/rootfs/ownmount.go:RemoveOwnMount":                ownFiles,
	"internal/rootfs/ownmount.go:MakeOwnMount":                  ownFiles,
	"internal/rootfs/ownmount.go:isMount":                       ownFiles,
	"internal/rootfs/mapped.go:mountMapped":                     ownFiles,
	"internal/rootfs/mapped.go:mountOver":                       ownFiles,
	"internal/rootfs/filesystem.go:attach":                      ownFiles,
	"internal/rootfs/overlay.go:mountFrom":                      ownFiles,
	"internal/rootfs/rootfs.go:Mount":                           ownFiles,
	"internal/rootfs/rootfs.go:Mounted":                         ownFiles,
	"internal/rootfs/rootfs.go:Unmount":                         ownFiles,
	"internal/rootfs/rootfs.go:bind":                            operators,
	"internal/rootfs/rootfs.go:mountFlat":                       ownFiles,
	"internal/rootfs/rootfs.go:mountOne":                        inRoots,
	"internal/rootfs/rootfs.go:remount":                         ownFiles,
	"internal/rootfs/rootfs.go:setReadOnly":                     ownFiles,
	"internal/runtime/oci/answers.go:recall":                    ownFiles,
	"internal/runtime/oci/binds.go:attach":                      ownFiles,
	"internal/runtime/oci/binds.go:copyBinds":                   ownFiles,
	"internal/runtime/oci/binds.go:withBindCopies":              ownFiles,
	"internal/runtime/oci/binds.go:removeBindCopies":            ownFiles,
	"internal/runtime/oci/errors.go:lastWords":                  ownFiles,
	"internal/runtime/oci/oci.go:Delete":                        ownFiles,
	"internal/runtime/oci/oci.go:Exec":                          ownFiles,
	"internal/runtime/oci/oci.go:List":                          ownFiles,
	"internal/runtime/oci/oci.go:New":                           ownFiles,
	"internal/runtime/oci/oci.go:Update":                        ownFiles,
	"internal/runtime/oci/oci.go:joinAdopted":                   kernels,
	"internal/runtime/oci/passage.go:grant":                     ownFiles,
	"internal/runtime/oci/passage.go:revoke":                    ownFiles,
	"internal/runtime/oci/passage.go:setAccess":                 ownFiles,
	"internal/runtime/oci/probe.go:probe":                       operators,
	"internal/volume/repair.go:Repair":                          ownFiles,
	"internal/volume/volume.go:Create":                          ownFiles,
	"internal/volume/volume.go:List":                            ownFiles,
	"internal/volume/volume.go:New":                             ownFiles,
	"internal/volume/volume.go:Remove":                          ownFiles,
	"internal/volume/volume.go:sound":                           ownFiles,
	"internal/volume/volume.go:write":                           ownFiles,
	"internal/volume/volume.go:writeCopy":                       ownFiles,
}

// TestPathsOfWorkloadsAreOpenedBeneath finds each call of a function that follows
// links in the packages that workloads' paths come to.
func TestPathsOfWorkloadsAreOpenedBeneath(t *testing.T) {
	const top = "../.."
	used := map[string]bool{}
	for _, room := range reachWorkloads {
		err := filepath.WalkDir(filepath.Join(top, room), func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				if err == nil && testSupport(name) {
					return fs.SkipDir
				}
				return err
			}
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			for _, c := range callsByName(t, name) {
				rel, err := filepath.Rel(top, name)
				if err != nil {
					return err
				}
				where := rel + ":" + c.in
				used[where] = true
				if _, ok := allowedByName[where]; !ok {
					t.Errorf("%s calls %s: a path of which a workload owns a part is opened by internal/beneath; if it is none, say in allowedByName what it is", where, c.what)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for where := range allowedByName {
		if !used[where] {
			t.Errorf("%s is allowed to open paths by name and does not: take it out", where)
		}
	}
}

type callByName struct{ in, what string }

func callsByName(t *testing.T, file string) (calls []callByName) {
	t.Helper()
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return callsIn(t, file, src)
}

func callsIn(t *testing.T, file string, src []byte) (calls []callByName) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	imports := map[string]string{} // by the name in the file
	for _, i := range f.Imports {
		p := strings.Trim(i.Path.Value, `"`)
		name := p[strings.LastIndexByte(p, '/')+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imports[name] = p
	}
	for _, d := range f.Decls {
		in := "var"
		if fn, ok := d.(*ast.FuncDecl); ok {
			in = fn.Name.Name
		}
		ast.Inspect(d, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr) // also where the function is only handed on
			if !ok {
				return true
			}
			x, ok := s.X.(*ast.Ident)
			if ok && slices.Contains(byName[imports[x.Name]], s.Sel.Name) {
				calls = append(calls, callByName{in, x.Name + "." + s.Sel.Name})
			}
			return true
		})
	}
	return calls
}

// TestCallsByNameAreFound: the finder finds, under another name and not called too.
func TestCallsByNameAreFound(t *testing.T) {
	const src = `package p
import (
	"os"
	u "golang.org/x/sys/unix"
	"path/filepath"
)
var open = os.Open
func (x T) a() { _, _ = os.OpenRoot("x"); _ = u.Mount("", "", "", 0, ""); func() { _, _ = filepath.EvalSymlinks("") }() }
func b(os T) { _ = root.Open("x"); os.Exit(1) }
`
	want := []callByName{{"var", "os.Open"}, {"a", "os.OpenRoot"}, {"a", "u.Mount"}, {"a", "filepath.EvalSymlinks"}}
	if got := callsIn(t, "p.go", []byte(src)); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
}
