package node

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
)

// NewGuest returns the command guest.
func NewGuest(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:   "guest [flag...]",
		Short: "Run the agent of a virtual machine's guest",
		Long: "Run the agent for Kata's shim inside of a virtual machine, like longshore-guest, and the control API for the host.\n" +
			"`longshore guest --help` lists its flags; as the machine's first process, or named init or kata-agent, it reads Kata's options instead.",
		DisableFlagParsing: true,
		RunE: func(_ *cobra.Command, args []string) error {
			if code := a.Guest(append([]string{"longshore-guest"}, args...)); code != 0 {
				return &base.ExitError{Status: code}
			}
			return nil
		},
	}
}
