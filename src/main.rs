//! Starts the command line; [`posthaste::cli`] does the rest.

// An event makes about a hundred small allocations on several threads; with
// this allocator it costs a tenth less CPU time than with glibc's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    posthaste::cli::run()
}
