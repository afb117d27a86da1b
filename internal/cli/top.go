package cli

import (
	"strconv"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newTop(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "top CONTAINER",
		Short: "List the processes of a container",
		Args:  exactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(func(c *client) error {
				resp, err := c.containers.Top(cmd.Context(), &longshorev1.TopRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteList(a.o.Stdout, resp.GetProcesses())
				}
				var rows [][]string
				for _, p := range resp.GetProcesses() {
					rows = append(rows, []string{
						strconv.Itoa(int(p.GetPid())), time.Duration(p.GetUserNs() + p.GetSystemNs()).Round(10 * time.Millisecond).String(),
						size(p.GetRssBytes()), size(p.GetSwapBytes()), strconv.Itoa(int(p.GetThreads())), p.GetCommand(),
					})
				}
				return table(a.o.Stdout, []string{"PID", "CPU TIME", "MEMORY", "SWAP", "THREADS", "COMMAND"}, rows)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
