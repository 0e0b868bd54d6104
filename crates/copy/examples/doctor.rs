//! Prints the cost of copying on this machine, and the size from which the copy engine is used.

fn main() {
    print!("{}", toehold_copy::calibration_report());
}
