package node

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/ocicli"
)

// NewOCI returns the command oci.
func NewOCI(a *base.App) *cobra.Command {
	return &cobra.Command{
		Use:                "oci [OPTION...] COMMAND ...",
		Short:              "The native runtime as an OCI command line, for Docker, Podman and containerd; needs no agent",
		DisableFlagParsing: true, // its options are runc's
		RunE: func(cmd *cobra.Command, args []string) error {
			if status := ocicli.Main(cmd.Context(), ocicli.Options{Args: args, Version: a.Version, Stdout: a.Stdout, Stderr: a.Stderr}); status != 0 {
				return &base.ExitError{Status: status}
			}
			return nil
		},
	}
}
