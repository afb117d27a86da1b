package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/listing"
	"github.com/longshore/longshore/internal/cli/present"
)

func newStats(a *app) *cobra.Command {
	var noStream, asJSON bool
	var every time.Duration
	var shown statsShown
	cmd := &cobra.Command{
		Use:   "stats [CONTAINER...]",
		Short: "Show the resource usage of running containers",
		Long:  "Show the resource usage of running containers: on a terminal until interrupted, elsewhere two samples, because the CPU share needs two.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if shown.text != "" {
				var err error
				if shown.format, err = present.ParseFormat(shown.text); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			return a.Call(func(c *base.Client) error {
				req := &longshorev1.StatsRequest{Names: args, Interval: durationpb.New(every)}
				if noStream && asJSON {
					req.Interval = nil
				}
				stream, err := c.Containers.Stats(cmd.Context(), req)
				if err != nil {
					return err
				}
				_, onTerminal := base.Terminal(a.Stdout)
				follow := (onTerminal || asJSON || shown.format != nil) && !noStream
				rounds := 0
				err = base.Receive(stream.Recv, func(m *longshorev1.StatsResponse) error {
					rounds++
					last := !follow && (rounds == 2 || req.GetInterval() == nil)
					if asJSON && (follow || last) {
						if err := present.WriteLine(a.Stdout, m); err != nil {
							return err
						}
					}
					if !asJSON && (follow || last) {
						if err := a.statsTable(m, shown, onTerminal && follow && rounds > 1); err != nil {
							return err
						}
					}
					if last {
						return errEnough
					}
					return nil
				})
				if err == errEnough { //nolint:errorlint // our own value, never wrapped
					return nil
				}
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&noStream, "no-stream", false, "print one sample and exit")
	cmd.Flags().DurationVar(&every, "interval", time.Second, "time between samples")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print each sample as a line of JSON")
	cmd.Flags().StringVar(&shown.text, "format", "", "template for each container, such as '{{.Name}} {{.MemUsage}}', \"table TEMPLATE\", or json")
	cmd.Flags().BoolVar(&shown.full, "no-trunc", false, "do not shorten anything")
	cmd.Flags().BoolP("all", "a", false, "no effect: ended containers use no resources")
	return cmd
}

// errEnough ends a stream that would continue.
var errEnough = fmt.Errorf("enough")

// statsShown has the format of the shown samples.
type statsShown struct {
	text   string
	format *present.Format // nil for the table
	full   bool
}

// statsTable prints a sample; again overwrites the previous one.
func (a *app) statsTable(m *longshorev1.StatsResponse, shown statsShown, again bool) error {
	if again {
		if err := a.Print("\x1b[H\x1b[2J"); err != nil {
			return err
		}
	}
	var rows [][]string
	var filled []present.Row
	for _, s := range m.GetContainers() {
		cpu := "-"
		if s.CpuPercent != nil {
			cpu = fmt.Sprintf("%.1f%%", s.GetCpuPercent())
		}
		memory, percent := base.BytesOrDash(s.WorkingSetBytes), "-"
		if s.MemoryLimitBytes != nil {
			memory += " / " + base.Size(s.GetMemoryLimitBytes())
			percent = fmt.Sprintf("%.1f%%", 100*float64(s.GetWorkingSetBytes())/float64(max(s.GetMemoryLimitBytes(), 1)))
		}
		pids := "-"
		if s.Pids != nil {
			pids = fmt.Sprint(s.GetPids())
		}
		id, name := base.Short(s.GetId()), base.Cut(s.GetKey(), 40)
		if shown.full {
			id, name = s.GetId(), s.GetKey()
		}
		network, disk := base.Size(s.GetRxBytes())+" / "+base.Size(s.GetTxBytes()), base.Size(s.GetReadBytes())+" / "+base.Size(s.GetWriteBytes())
		rows = append(rows, []string{id, s.GetOwner(), name, cpu, memory, pids, network, disk, base.BytesOrDash(s.RootBytes)})
		filled = append(filled, present.Row{
			"ID": id, "Container": id, "Owner": s.GetOwner(), "Name": s.GetKey(), "CPUPerc": cpu, "MemUsage": memory, "MemPerc": percent, "PIDs": pids,
			"NetIO": network, "BlockIO": disk,
		})
	}
	if shown.format != nil {
		return shown.format.Rows(a.Stdout, listing.ContainerHeaders, filled)
	}
	return base.Table(a.Stdout, []string{"ID", "OWNER", "NAME", "CPU", "MEMORY", "PIDS", "NET IN / OUT", "DISK IN / OUT", "LAYER"}, rows)
}
