package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/compose"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
	"github.com/longshore/longshore/internal/cli/typed"
)

// listFlags are the flags of the commands that list objects, with the names of other tools' flags.
type listFlags struct {
	format         string
	filters        []string
	json, ids, all bool
}

func (f *listFlags) define(cmd *cobra.Command, filters []string) {
	fl := cmd.Flags()
	fl.StringVar(&f.format, "format", "", "template for each row, such as '{{.ID}} {{.Names}}', \"table TEMPLATE\", or json")
	fl.StringArrayVarP(&f.filters, "filter", "f", nil, "only matches, NAME=VALUE: "+strings.Join(filters, ", "))
	fl.BoolVar(&f.json, "json", false, "print JSON")
	fl.BoolVarP(&f.ids, "quiet", "q", false, "print IDs only")
	fl.BoolVar(&f.all, "no-trunc", false, "do not shorten anything")
}

// parsed returns the format, nil without one, and the filters.
func (f *listFlags) parsed(known []string) (format *present.Format, filters present.Filters, err error) {
	if f.format != "" && f.format != "table" { // the table is the default
		if format, err = present.ParseFormat(f.format); err != nil {
			return nil, nil, &base.UsageError{Err: err}
		}
	}
	if filters, err = present.ParseFilters(f.filters, known...); err != nil {
		return nil, nil, &base.UsageError{Err: err}
	}
	return format, filters, nil
}

// psFilters are the names of the filters of ps.
var psFilters = []string{"name", "id", "status", "label", "label!", "exited", "ancestor", "before", "since", "volume", "network", "publish", "expose", "health", "owner"}

// shownStates are the states of the containers that ps shows without --all.
var shownStates = []string{"running", "paused", "asleep", "restarting"}

func newPs(a *app) *cobra.Command {
	req := &longshorev1.ListContainersRequest{}
	var labels []string
	var flags listFlags
	var last int
	var latest bool
	var projectName string
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"list"},
		Short:   "List the containers of every owner",
		Long:    "List the containers of every owner. With -p, or with -f and a Compose file, only those of the project: an argument of -f without = is a file.",
		Args:    base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if req.Labels, err = typed.Labels(labels); err != nil {
				return &base.UsageError{Err: err}
			}
			if err := ofProject(a, cmd, &flags, projectName, req); err != nil {
				return err
			}
			format, filters, err := flags.parsed(psFilters)
			if err != nil {
				return err
			}
			if latest {
				last = 1
			}
			all := req.GetAll() || last > 0 || len(filters["status"])+len(filters["exited"]) > 0
			full := &longshorev1.ListContainersRequest{
				Owner: req.GetOwner(), Labels: req.GetLabels(), Sandbox: req.GetSandbox(), Sizes: req.GetSizes() || format != nil && format.Uses("Size"),
				All: all || len(filters["before"])+len(filters["since"]) > 0, // to compare with the others
			}
			return a.Call(func(c *base.Client) error {
				resp, err := c.Containers.ListContainers(cmd.Context(), full)
				if err != nil {
					return err
				}
				list, err := filterContainers(resp.GetContainers(), filters)
				if err != nil {
					return err
				}
				if !all {
					list = slices.DeleteFunc(list, func(ct *longshorev1.Container) bool { return !slices.Contains(shownStates, ct.GetState()) })
				}
				if last > 0 && len(list) > last {
					list = list[:last] // the newest are first
				}
				switch {
				case flags.json:
					return present.WriteList(a.Stdout, list)
				case flags.ids:
					for _, ct := range list {
						id := ct.GetId()
						if !flags.all {
							id = base.Short(id)
						}
						if err := a.Print("%s\n", id); err != nil {
							return err
						}
					}
					return nil
				case format != nil:
					var rows []present.Row
					for _, ct := range list {
						rows = append(rows, listing.Container(ct, flags.all))
					}
					return format.Rows(a.Stdout, listing.ContainerHeaders, rows)
				}
				return psTable(a, list, flags.all, req.GetSizes())
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&req.All, "all", "a", false, "also containers that do not run")
	fl.StringVar(&req.Owner, "owner", "", "only this owner's: cli, cri, swarm, nomad, mesos, kata")
	fl.StringVar(&req.Sandbox, "sandbox", "", "only containers in this sandbox")
	fl.StringArrayVar(&labels, "label", nil, "only with this label, NAME=value")
	fl.StringVarP(&projectName, "project-name", "p", "", "only containers of this project of Compose files")
	fl.IntVarP(&last, "last", "n", 0, "only this many of the newest, running or not")
	fl.BoolVarP(&latest, "latest", "l", false, "only the newest, running or not")
	fl.BoolVarP(&req.Sizes, "size", "s", false, "show the size of each container's changes and of its image")
	flags.define(cmd, psFilters)
	return cmd
}

// ofProject restricts the list to the project of -p, or of the Compose file among the filters: a filter has a =, and a file has
// none.
func ofProject(a *app, cmd *cobra.Command, flags *listFlags, name string, req *longshorev1.ListContainersRequest) error {
	file := ""
	for i, f := range flags.filters {
		if !strings.Contains(f, "=") {
			file, flags.filters = f, slices.Delete(flags.filters, i, i+1)
			break
		}
	}
	if file != "" {
		if _, err := os.Stat(file); err != nil {
			return &base.UsageError{Err: fmt.Errorf("-f %s is neither a filter, NAME=VALUE, nor a Compose file: %w", file, err)}
		}
	}
	if file == "" && name == "" {
		return nil
	}
	name, err := compose.ProjectName(cmd.Context(), a.App, file, name)
	if err != nil {
		return err
	}
	if req.Labels == nil {
		req.Labels = map[string]string{}
	}
	req.Labels[composefile.LabelProject] = name
	return nil
}

// filterContainers returns the containers of list that match the filters.
func filterContainers(list []*longshorev1.Container, f present.Filters) ([]*longshorev1.Container, error) {
	var after, before time.Time
	for name, at := range map[string]*time.Time{"since": &after, "before": &before} {
		for _, v := range f[name] {
			i := slices.IndexFunc(list, func(c *longshorev1.Container) bool {
				return c.GetKey() == v || c.GetName() == v || strings.HasPrefix(c.GetId(), v)
			})
			if i < 0 {
				return nil, fmt.Errorf("--filter %s=%s: no container has this name", name, v)
			}
			*at = list[i].GetCreated().AsTime()
		}
	}
	fits := func(c *longshorev1.Container) bool {
		created := c.GetCreated().AsTime()
		return f.Any("name", func(v string) bool {
			return strings.Contains(c.GetName(), strings.Trim(v, "^$/")) && anchored(c.GetName(), v)
		}) &&
			f.Any("id", func(v string) bool { return strings.HasPrefix(c.GetId(), v) }) &&
			f.Any("owner", func(v string) bool { return c.GetOwner() == v }) &&
			f.Any("status", func(v string) bool { return c.GetState() == v }) &&
			f.Any("health", func(v string) bool { return c.GetHealth() == v || v == "none" && c.GetHealth() == "" }) &&
			f.Any("exited", func(v string) bool {
				return c.GetAutopsy() != nil && strconv.Itoa(int(c.GetAutopsy().GetStatus())) == v
			}) &&
			f.Any("ancestor", func(v string) bool { return present.Image(v, c.GetImageId(), c.GetImage()) }) &&
			f.Any("volume", func(v string) bool { return slices.Contains(c.GetVolumes(), v) }) &&
			f.Any("network", func(v string) bool { return onNetwork(c, v) }) &&
			f.Any("publish", func(v string) bool { return hasPort(c, v, (*longshorev1.Port).GetHost) }) &&
			f.Any("expose", func(v string) bool { return hasPort(c, v, (*longshorev1.Port).GetContainer) }) &&
			f.Labels(c.GetLabels()) && (after.IsZero() || created.After(after)) && (before.IsZero() || created.Before(before))
	}
	return slices.DeleteFunc(list, func(c *longshorev1.Container) bool { return !fits(c) }), nil
}

// anchored reports whether name matches pattern at its begin if that has a ^, and at its end if that has a $.
func anchored(name, pattern string) bool {
	word := strings.TrimPrefix(strings.Trim(pattern, "^$"), "/")
	return (!strings.HasPrefix(pattern, "^") || strings.HasPrefix(name, word)) && (!strings.HasSuffix(pattern, "$") || strings.HasSuffix(name, word))
}

// onNetwork reports whether a container is on a network. The default network has two names.
func onNetwork(c *longshorev1.Container, name string) bool {
	if name == "default" {
		name = "bridge"
	}
	return slices.Contains(c.GetNetworks(), name)
}

// hasPort reports whether a container has the port of a filter, PORT[/PROTOCOL].
func hasPort(c *longshorev1.Container, want string, number func(*longshorev1.Port) uint32) bool {
	port, proto, _ := strings.Cut(want, "/")
	return slices.ContainsFunc(c.GetPorts(), func(p *longshorev1.Port) bool {
		return strconv.FormatUint(uint64(number(p)), 10) == port && (proto == "" || proto == p.GetProtocol())
	})
}

func psTable(a *app, list []*longshorev1.Container, full, sizes bool) error {
	var rows [][]string
	for _, c := range list {
		id, name, image, command := c.GetId(), c.GetName(), c.GetImage(), strings.Join(c.GetCommand(), " ")
		if !full {
			id, name, image, command = base.Short(id), base.Cut(name, 40), base.Cut(image, 40), base.Cut(command, 30)
			if strings.HasPrefix(c.GetImage(), "sha256:") {
				image = base.Short(c.GetImage())
			}
		}
		row := []string{id, c.GetOwner(), name, image, command, base.StateText(c), base.Ago(c.GetCreated()), base.PortText(c.GetPorts())}
		if sizes {
			row = append(row, listing.SizeText(c))
		}
		rows = append(rows, row)
	}
	header := []string{"ID", "OWNER", "NAME", "IMAGE", "COMMAND", "STATE", "CREATED", "PORTS"}
	if sizes {
		header = append(header, "SIZE")
	}
	return base.Table(a.Stdout, header, rows)
}
