//! Sensor data as it arrives: SenML, plain readings, units.
