package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

func newTop(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "top CONTAINER",
		Short: "List the processes of a container",
		Args:  base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Containers.Top(cmd.Context(), &longshorev1.TopRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteList(a.Stdout, resp.GetProcesses())
				}
				var rows [][]string
				for _, p := range resp.GetProcesses() {
					rows = append(rows, []string{
						strconv.Itoa(int(p.GetPid())), time.Duration(p.GetUserNs() + p.GetSystemNs()).Round(10 * time.Millisecond).String(),
						base.Size(p.GetRssBytes()), base.Size(p.GetSwapBytes()), strconv.Itoa(int(p.GetThreads())), p.GetCommand(),
					})
				}
				return base.Table(a.Stdout, []string{"PID", "CPU TIME", "MEMORY", "SWAP", "THREADS", "COMMAND"}, rows)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
