package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newInfo(a *app) *cobra.Command {
	var format string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "info",
		Short: "Show what the node is, and how much it holds",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var f *present.Format
			if format != "" {
				var err error
				if f, err = present.ParseFormat(format); err != nil {
					return &usageError{err}
				}
			}
			return a.call(func(c *client) error {
				resp, err := c.node.Info(cmd.Context(), &longshorev1.InfoRequest{})
				switch {
				case err != nil:
					return err
				case asJSON:
					return present.WriteJSON(a.o.Stdout, present.Plain(resp), true)
				case f != nil:
					return f.One(a.o.Stdout, infoDocument(resp))
				}
				return infoText(a, resp)
			})
		},
	}
	cmd.Flags().StringVarP(&format, "format", "f", "", "template to fill, such as '{{.ServerVersion}}', or json for a line")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// infoDocument is what a template sees, by the names that docker has.
func infoDocument(r *longshorev1.InfoResponse) map[string]any {
	runtimes, standard := map[string]any{}, ""
	for _, rt := range r.GetVersion().GetRuntimes() {
		runtimes[rt.GetName()] = map[string]any{"path": rt.GetPath(), "version": rt.GetVersion(), "problem": rt.GetProblem()}
		if rt.GetDefault() {
			standard = rt.GetName()
		}
	}
	version, _, _ := strings.Cut(r.GetCgroups(), " ")
	return map[string]any{
		"Name": r.GetHostname(), "OperatingSystem": r.GetSystem(), "OSType": "linux", "KernelVersion": r.GetVersion().GetKernel(),
		"Architecture": strings.TrimPrefix(r.GetVersion().GetPlatform(), "linux/"), "NCPU": int(r.GetCpus()), "MemTotal": r.GetMemoryBytes(),
		"Containers": int(r.GetRunning() + r.GetPaused() + r.GetStopped()), "ContainersRunning": int(r.GetRunning()), "ContainersPaused": int(r.GetPaused()),
		"ContainersStopped": int(r.GetStopped()), "Images": int(r.GetImages()), "Volumes": int(r.GetVolumes()), "ServerVersion": r.GetVersion().GetVersion(),
		"Driver": "overlay", "StorageRoot": r.GetStorage(), "CgroupVersion": strings.TrimPrefix(version, "v"), "Runtimes": runtimes, "DefaultRuntime": standard,
		"Network": r.GetNetwork(), "NetworkRanges": r.GetNetworkRanges(),
	}
}

func infoText(a *app, r *longshorev1.InfoResponse) error {
	t := facts{w: a.o.Stdout}
	t.line("node        %s, %s, kernel %s, %s", r.GetHostname(), r.GetSystem(), r.GetVersion().GetKernel(), r.GetVersion().GetPlatform())
	t.line("machine     %d CPUs, %s of memory, cgroups %s", r.GetCpus(), size(r.GetMemoryBytes()), r.GetCgroups())
	t.line("containers  %d running, %d paused, %d stopped", r.GetRunning(), r.GetPaused(), r.GetStopped())
	t.line("images      %d, in %s", r.GetImages(), r.GetStorage())
	t.line("volumes     %d", r.GetVolumes())
	t.line("network     %s %s", r.GetNetwork(), strings.Join(r.GetNetworkRanges(), ", "))
	if t.err != nil {
		return t.err
	}
	return a.agentVersion(r.GetVersion())
}

func newSystem(a *app) *cobra.Command {
	return groupOf("system", "The node as a whole", newSystemDf(a), newSystemPrune(a), newInfo(a), newEvents(a))
}

func newSystemDf(a *app) *cobra.Command {
	var verbose, asJSON bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show what images, containers and volumes occupy",
		Long: "Show what images, containers and volumes occupy on the disk. Images share layers: the sum of their sizes is larger than what the store has, " +
			"and removing those that nothing uses frees at most what is said.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.call(func(c *client) error {
				resp, err := c.node.DiskUsage(cmd.Context(), &longshorev1.DiskUsageRequest{})
				switch {
				case err != nil:
					return err
				case asJSON:
					return present.WriteJSON(a.o.Stdout, present.Plain(resp), true)
				case verbose:
					return usageTable(a, resp)
				}
				var rows [][]string
				for _, kind := range []struct {
					name string
					list []*longshorev1.Usage
				}{{"Images", resp.GetImages()}, {"Containers", resp.GetContainers()}, {"Volumes", resp.GetVolumes()}} {
					var active int
					var total, idle uint64
					for _, u := range kind.list {
						total += u.GetBytes()
						if u.GetActive() {
							active++
						} else {
							idle += u.GetBytes()
						}
					}
					share := ""
					if total > 0 {
						share = fmt.Sprintf(" (%d%%)", idle*100/total)
					}
					rows = append(rows, []string{kind.name, fmt.Sprint(len(kind.list)), fmt.Sprint(active), size(total), size(idle) + share})
				}
				if err := table(a.o.Stdout, []string{"TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE"}, rows); err != nil {
					return err
				}
				return a.print("The image store has %s.\n", size(resp.GetStoreBytes()))
			})
		},
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "show each object")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func usageTable(a *app, r *longshorev1.DiskUsageResponse) error {
	var rows [][]string
	for _, kind := range []struct {
		name string
		list []*longshorev1.Usage
	}{{"image", r.GetImages()}, {"container", r.GetContainers()}, {"volume", r.GetVolumes()}} {
		for _, u := range kind.list {
			used := ""
			if u.GetActive() {
				used = "active"
			}
			name := u.GetName()
			if name == "" {
				name = "-"
			}
			rows = append(rows, []string{kind.name, u.GetOwner(), cut(name, 60), short(u.GetId()), size(u.GetBytes()), used})
		}
	}
	return table(a.o.Stdout, []string{"TYPE", "OWNER", "NAME", "ID", "SIZE", ""}, rows)
}

func newSystemPrune(a *app) *cobra.Command {
	var all, volumes, force bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove ended containers, unused images and, when asked, unused volumes",
		Long:  "Remove what is no longer used of the objects of owner cli: the containers that have ended, and images without a name or, with --all, all that no container uses.",
		Args:  noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := sure(a, force, "This removes all containers of owner cli that have ended, and images that nothing uses."); err != nil {
				return err
			}
			return a.call(func(c *client) error {
				return a.prune(cmd, c, pruning{all: all, containers: true, volumes: volumes, images: true})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "every image that no container uses")
	cmd.Flags().BoolVar(&volumes, "volumes", false, "also volumes that no container uses")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	return cmd
}

// sure asks on a terminal whether to go on; elsewhere nobody can answer, and force is not needed.
func sure(a *app, force bool, what string) error {
	_, asked := terminal(a.o.Stdin)
	if force || !asked {
		return nil
	}
	if err := a.print("%s Continue? [y/N] ", what); err != nil {
		return err
	}
	var answer string
	_, _ = fmt.Fscanln(a.o.Stdin, &answer) // nothing is no
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return &exitError{1, context.Canceled}
	}
	return nil
}
